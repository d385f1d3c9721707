"""The stall timeout of the day of trades."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.no_process import NoAudience, ProcesslessChild
from txmsg.ops.demo.trades import supervisor
from txmsg.ops.demo.trades.health import HealthWriter
from txmsg.ops.demo.trades.load import Load
from txmsg.ops.demo.trades.stage import TradeStage


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
    monkeypatch.setattr(supervisor, "PATIENCE_S", -1.0)
    load, spark = Load(rate=100, seconds=6, seed=5), Starting("spark")
    stage = EmptyStage(tmp_path, load)
    stage.children |= {"spark": spark, "trade_service": spark}
    supervisor._TradingRun(supervisor.TradesPlan(load=load), stage, HealthWriter(stage), None, NoAudience()).settle()
    assert spark.has_started
