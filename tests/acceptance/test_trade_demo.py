"""The trade dashboard is played small, with real processes, and its totals agree though processes are killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.trade_dashboard.load import Load, steps
from examples.trade_dashboard.play.supervisor import Plan, play


class Quiet:
    """Watches, and says nothing."""

    def phase(self, title: str, steps: int) -> None: ...

    def progress(self, steps: int, note: str) -> None: ...

    def say(self, text: str) -> None: ...


@pytest.mark.takes_long
@pytest.mark.timeout(400)
def test_the_day_ends_as_it_was_planned_though_service_broker_and_tailer_are_killed(tmp_path: Path) -> None:
    load = Load(rate=120, seconds=5, seed=5)
    result = play(Plan(load=load, kill=True, with_dashboard=False), tmp_path, Quiet())

    assert result.findings == []
    assert result.clean
    assert result.kills == {"trade_service": 1, "broker": 1, "tailer": 1}
    planned = sum(
        {"paid": step.order.amount_cents, "refunded": -step.order.amount_cents}.get(step.event, 0)
        for step in steps(load)
    )
    assert result.trades == load.trades
    assert result.turnover_cents == {"database": planned, "log": planned, "dashboard": None}
    assert result.stock_short > 0, "nothing ran out of stock, so nothing was tried"
