"""How long the day of trades waits for what does not move."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from txmsg.demo.trades import supervisor
from txmsg.demo.trades.load import Load


class Starting:
    """A process that was killed, and starts again: what it counts moves when it is ready."""

    is_ready = False
    last_line = ""

    def wait_ready(self) -> None:
        self.is_ready = True

    def require_running(self) -> None:
        assert self.is_ready


def test_that_nothing_moves_counts_from_when_all_have_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "PATIENCE_S", -1.0)
    load, spark = Load(rate=100, seconds=6, seed=5), Starting()
    stage: Any = SimpleNamespace(children={"spark": spark, "trade_service": spark}, logged=lambda: 0)
    none: Any = SimpleNamespace(measures={}, phase=lambda *_: None)
    supervisor._Day(supervisor.Plan(load=load), stage, none, None, none).settle()
    assert spark.is_ready
