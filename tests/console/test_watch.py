"""What the console makes of the figures that brokers tell, without a broker."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from txmsg.console import watch as console_watch
from txmsg.console.database import ATTEMPT_S_MAX, Database
from txmsg.console.watch import Watch
from txmsg.wire.method import Method
from txmsg.wire.v1 import cluster_pb2 as pb


class _Brokers(Database):
    """One broker, which tells how many messages are in topic t, as it has read it `age_s` ago."""

    def __init__(self) -> None:
        super().__init__("notify", ["127.0.0.1:1"])
        self.total, self.age_s = 0.0, 0.0

    async def ask(self, method: Method[Any, Any], request: Any) -> Any:
        return pb.ShowClusterReply(shard=bytes(16), brokers=[pb.ClusterBroker(id="one", address="a:1", state="active")])

    async def ask_at(
        self, address: str, method: Method[Any, Any], request: Any, *, timeout_s: float = ATTEMPT_S_MAX
    ) -> Any:
        figures = [("txmsg_halves", ["parked"], 0.0), ("txmsg_topic_messages_total", ["t"], self.total)]
        figures.append(("txmsg_database_figures_age_seconds", [], self.age_s))
        return pb.FiguresReply(
            broker="one", figures=[pb.Figure(name=name, labels=labels, value=value) for name, labels, value in figures]
        )


async def test_figures_that_a_busy_broker_tells_again_are_no_rate_of_0(monkeypatch: pytest.MonkeyPatch) -> None:
    at = 1000.0
    monkeypatch.setattr(console_watch, "time", SimpleNamespace(monotonic=lambda: at, time=time.time))
    brokers = _Brokers()
    watch = Watch(brokers)
    rates: list[Any] = []
    for passed_s, brokers.total, brokers.age_s in ((0, 100, 0), (5, 100, 5), (5, 200, 0), (5, 200, 5), (5, 300, 0)):
        at += passed_s
        watch.snapshot = await watch._poll()
        rates.append(watch.snapshot.each_rate("txmsg_topic_messages_total").get(("t",)))
    await brokers.close()
    assert rates == [None, None, 10.0, 10.0, 10.0]
