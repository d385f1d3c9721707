"""The stall timeout of the day of trades."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.no_process import NoAudience, ProcesslessChild
from txmsg.ops.demo.trades.load import Load
from txmsg.ops.demo.trades.trade_stage import TradeStage
from txmsg.ops.demo.trades.trading_run import TradesPlan, TradingRun


class Starting(ProcesslessChild):
    """A killed process that starts again: its counts move when it is ready."""

    has_started = False

    def wait_ready(self, timeout_s: float = 240.0) -> str:
        self.has_started = True
        return ""

    def require_running(self) -> None:
        assert self.has_started


class EmptyStage(TradeStage):
    """A stage without a log."""

    def logged(self) -> int:
        return 0


def test_the_stall_timeout_starts_when_all_processes_have_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(TradingRun, "patience_s", -1.0)
    load, spark = Load(rate=100, seconds=6, seed=5), Starting("spark")
    stage = EmptyStage(tmp_path, load)
    stage.children |= {"spark": spark, "trade_service": spark}
    TradingRun(TradesPlan(load=load), stage, NoAudience()).settle()
    assert spark.has_started
