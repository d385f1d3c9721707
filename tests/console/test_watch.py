"""Rates and counts that the console derives from brokers' metrics, without a broker."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from tests.console.desk import desk_of, look_at, snapshot_of
from tests.methods import made
from txmsg.administration.cluster import BrokerSummary, ClusterState, ExportedFigures, Figure, Series
from txmsg.checks.brokers import FIGURES_MISSING
from txmsg.metrics.catalogue import OTHER
from txmsg.ops.console import database_poller as console_watch
from txmsg.ops.console.database import ATTEMPT_S_MAX, DatabaseBrokers
from txmsg.ops.console.database_poller import DatabasePoller
from txmsg.ops.console.pages import overview
from txmsg.ops.console.pages.overview import findings, lines
from txmsg.wire.method import Method


class _Brokers(DatabaseBrokers):
    """One broker that reports the number of messages in topic t, as read `age_s` ago."""

    def __init__(self) -> None:
        super().__init__("notify", ["127.0.0.1:1"])
        self.total, self.age_s, self.has_read, self.count = 0.0, 0.0, True, 1

    async def ask_any(self, method: Method[Any, Any], request: Any) -> Any:
        at = datetime.now(UTC)
        brokers = [made(BrokerSummary, id=f"b{number}", started_at=at, heartbeat_at=at) for number in range(self.count)]
        return made(ClusterState, brokers=brokers)

    async def ask_at(
        self, address: str, method: Method[Any, Any], request: Any, *, timeout_s: float = ATTEMPT_S_MAX
    ) -> Any:
        figures: list[tuple[str, list[str], float]] = [("txmsg_database_figures_age_seconds", [], self.age_s)]
        if self.has_read:
            figures += [("txmsg_halves", ["parked"], 0.0), ("txmsg_topic_messages_total", ["t"], self.total)]
        return ExportedFigures(
            broker="one",
            now=datetime.now(UTC),
            figures=[Figure(name=name, labels=labels, value=value) for name, labels, value in figures],
        )


async def test_repeated_metrics_of_a_busy_broker_keep_the_last_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    at = 1000.0
    monkeypatch.setattr(console_watch, "time", SimpleNamespace(monotonic=lambda: at, time=time.time))
    brokers = _Brokers()
    watch = DatabasePoller(brokers)
    rates: list[Any] = []
    for passed_s, brokers.total, brokers.age_s in ((0, 100, 0), (5, 100, 5), (5, 200, 0), (5, 200, 5), (5, 300, 0)):
        at += passed_s
        watch.snapshot = await watch._poll()
        rates.append(watch.snapshot.each_rate("txmsg_topic_messages_total").get(("t",)))
    await brokers.close()
    assert rates == [None, None, 10.0, 10.0, 10.0]


async def test_metrics_not_read_yet_are_not_shown_as_0() -> None:
    brokers = _Brokers()
    watch = DatabasePoller(brokers)
    brokers.has_read = False
    watch.snapshot = await watch._poll()
    watch._remember(watch.snapshot)
    assert not {"halves", "lag", "dead"} & watch.history[-1].values.keys()
    assert [line.value for line in lines(watch) if line.name in {"in_doubt", "lag", "dead"}] == [None] * 3
    await brokers.close()


async def test_brokers_beyond_the_polled_ones_are_counted() -> None:
    brokers = _Brokers()
    brokers.count = 60
    watch = DatabasePoller(brokers)
    [found] = [each.finding for each in findings(await watch._poll()) if each.finding.check is FIGURES_MISSING]
    assert found.fields["value"] == 10
    await brokers.close()


async def test_groups_beyond_those_named_by_metrics_are_counted() -> None:
    lag: Series = {("txmsg_group_lag_messages", pair): 1.0 for pair in (("g", "t"), (OTHER, OTHER))}
    desk = desk_of(rates={})
    counts: list[tuple[Series, str]] = [({}, "1+"), ({("txmsg_groups", ()): 1234.0}, "1,234")]
    for told, shown in counts:
        desk.watch.snapshot = replace(desk.watch.snapshot or snapshot_of({}), database={**lag, **told})
        desk.watch._remember(desk.watch.snapshot)
        assert (await overview._read(look_at(desk)))["group_count"] == shown
    await desk.watch.database.close()
