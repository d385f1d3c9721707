"""An overview of one Notify database: rates, waiting messages, and findings that need an operator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from txmsg.checks.brokers import (
    BROKER_DRAINED,
    FIGURES_LATE,
    FIGURES_MISSING,
    PROCESS_DOWN,
    QUEUES_UNDELIVERED,
    RELEASES_DIFFER,
)
from txmsg.checks.catalogue import findings_in
from txmsg.checks.check import CRITICAL, Check, Finding, Severity
from txmsg.checks.conditions import samples_told
from txmsg.checks.database import SLOT_KEEPS_LOG
from txmsg.checks.messages import (
    CHECKS_OVERDUE,
    DEAD_LETTERS,
    GROUP_BEHIND,
    GROUP_PAUSED,
    TRANSACTIONS_IN_DOUBT,
    TRANSACTIONS_PARKED,
)
from txmsg.metrics.catalogue import NAMED_MAX, OTHER, Scope
from txmsg.ops.console.database_poller import DatabasePoller, DatabaseSnapshot
from txmsg.ops.console.page_context import PageContext
from txmsg.ops.console.views import View

_ROWS: Final = 8
_STEP_S: Final = 5
"""Seconds between two points of a timeline: 180 points in 15 minutes."""
_FIGURES_LATE_S: Final = 60.0
_PAGES: Final = {
    GROUP_BEHIND: "/groups",
    GROUP_PAUSED: "/groups",
    DEAD_LETTERS: "/dead-letters",
    TRANSACTIONS_IN_DOUBT: "/halves",
    CHECKS_OVERDUE: "/halves",
    TRANSACTIONS_PARKED: "/halves",
    SLOT_KEEPS_LOG: "/mirrors",
}
"""The page with details of each check; the page of brokers for all others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverviewFigure:
    """A figure with its timeline. name: `overview.NAME` is its text."""

    name: str
    is_rate: bool
    value: float | None
    starts_at: int
    """The time of the first point, in seconds since 1970."""
    points: str
    """The values, separated by commas; empty for unknown ones."""
    path: str
    """The path of the page with details; empty if there is none."""
    is_bad: bool = False
    note: float | None = None
    """The note; `overview.NAME_note` is its text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverviewFinding:
    """The worst finding of a check, the number of others, and the page with details."""

    finding: Finding
    more: int
    path: str

    @property
    def is_bad(self) -> bool:
        """True if an operator must act now."""
        return self.finding.severity is CRITICAL


async def _read(look: PageContext) -> Mapping[str, Any]:
    snapshot = look.snapshot
    lags = snapshot.each("txmsg_group_lag_messages")
    seconds = snapshot.each("txmsg_group_lag_seconds")
    retrying = snapshot.each("txmsg_group_retrying_messages")
    dead = snapshot.each("txmsg_group_dead_letters")
    behind = sorted((of for of in lags if OTHER not in of), key=lambda of: (-lags[of], -dead.get(of, 0), of))[:_ROWS]
    rates = snapshot.each_rate("txmsg_topic_messages_total")
    totals = snapshot.each("txmsg_topic_messages_total")
    busiest = sorted((of for of in totals if OTHER not in of), key=lambda of: (-rates.get(of, 0), -totals[of], of))[
        :_ROWS
    ]
    return {
        "snapshot": snapshot,
        "lines": lines(look.watch),
        "findings": findings(snapshot),
        "brokers": [broker_row(snapshot, each.id) for each in snapshot.cluster.brokers],
        "groups": [
            {
                "group": of[0],
                "topic": of[1],
                "lag": lags[of],
                "seconds": seconds.get(of),
                "retrying": retrying.get(of),
                "dead": dead.get(of),
            }
            for of in behind
        ],
        "group_count": _count(snapshot, "txmsg_groups", {group for group, _ in lags}),
        "pair_count": snapshot.whole("txmsg_group_pairs") if (OTHER, OTHER) in lags else None,
        "topics": [{"topic": of[0], "rate": rates.get(of), "total": totals[of]} for of in busiest],
        "topic_count": _count(snapshot, "txmsg_topics", {topic for (topic,) in totals}),
        "is_topics_cut": (OTHER,) in totals,
        "named_max": NAMED_MAX,
    }


def _count(snapshot: DatabaseSnapshot, name: str, named: set[str]) -> str:
    """Return the number of findings. A broker of an older release only tells whether there are more than it names."""
    count = snapshot.whole(name)
    # Metrics name a bounded number of groups and topics; the rest is one series with the label OTHER.
    return f"{len(named - {OTHER}):,}" + ("+" if OTHER in named else "") if count is None else f"{count:,.0f}"


def broker_row(snapshot: DatabaseSnapshot, broker: str) -> dict[str, Any]:
    """Return a broker as tables show it."""
    return {
        "broker": snapshot.broker(broker),
        "silent": snapshot.silent.get(broker, ""),
        "stored": snapshot.rate_of(broker, "txmsg_stored_messages_total"),
        "delivered": snapshot.rate_of(broker, "txmsg_delivered_messages_total"),
        "cpu": snapshot.rate_of(broker, "txmsg_process_cpu_seconds_total"),
        "memory": snapshot.value_of(broker, "txmsg_process_resident_bytes"),
        "connections": snapshot.value_of(broker, "txmsg_connections"),
        "clients": snapshot.value_of(broker, "txmsg_attached_clients"),
        "groups": snapshot.value_of(broker, "txmsg_delivery_groups"),
        "errors": snapshot.rate_of(broker, "txmsg_call_errors_total"),
    }


def lines(watch: DatabasePoller) -> Sequence[OverviewFigure]:
    """Return the figures at the top. The poller must have a snapshot."""
    snapshot = watch.snapshot
    assert snapshot is not None
    now = watch.history[-1].values

    def line(
        name: str, path: str, *, is_rate: bool = False, is_bad: bool = False, note: float | None = None
    ) -> OverviewFigure:
        starts_at, points = _points(watch, name)
        return OverviewFigure(
            name=name,
            is_rate=is_rate,
            value=now.get(name),
            starts_at=starts_at,
            points=points,
            path=path,
            is_bad=is_bad,
            note=note,
        )

    parked = snapshot.total("txmsg_halves", "parked")
    return (
        line("stored", "/topics", is_rate=True),
        line("delivered", "/groups", is_rate=True),
        line("in_doubt", "/halves", is_bad=parked > 0, note=parked or None),
        line("lag", "/groups", note=snapshot.greatest("txmsg_group_lag_seconds") or None),
        line("dead", "/dead-letters", is_bad=now.get("dead", 0) > 0),
        line("errors", "/brokers", is_rate=True, is_bad=now.get("errors", 0) > 0),
    )


def _points(watch: DatabasePoller, name: str) -> tuple[int, str]:
    """Return the last quarter of an hour in steps, with the last value of each."""
    by_step = {int(point.at) // _STEP_S: point.values.get(name) for point in watch.history}
    first, last = min(by_step), max(by_step)
    value: float | None = None
    points = []
    for step in range(first, last + 1):
        value = by_step.get(step, value)  # polled rarely while no browser looks
        points.append("" if value is None else f"{value:.4g}")
    return first * _STEP_S, ",".join(points)


def findings(snapshot: DatabaseSnapshot) -> Sequence[OverviewFinding]:
    """Return the findings that need an operator, the worst first, one for each check."""
    by_check: dict[Check, list[Finding]] = {}
    for found in (*_of_brokers(snapshot), *_in_figures(snapshot)):
        by_check.setdefault(found.check, []).append(found)
    shown = [
        OverviewFinding(finding=found[0], more=len(found) - 1, path=_PAGES.get(check, "/brokers"))
        for check, found in by_check.items()
    ]
    return sorted(shown, key=lambda each: list(Severity).index(each.finding.severity))


def _of_brokers(snapshot: DatabaseSnapshot) -> Iterator[Finding]:
    alive = [each for each in snapshot.cluster.brokers if each.state != "dead"]
    if unassigned := snapshot.cluster.queues_unassigned:
        yield QUEUES_UNDELIVERED.found(value=unassigned, queues=snapshot.cluster.queues)
    if snapshot.silent:
        yield PROCESS_DOWN.found(instance=", ".join(snapshot.silent))
    if snapshot.unpolled:
        yield FIGURES_MISSING.found(value=snapshot.unpolled, polled=len(snapshot.series) + len(snapshot.silent))
    if draining := [each.id for each in alive if each.state == "draining"]:
        yield BROKER_DRAINED.found(broker=", ".join(draining))
    if len(releases := {each.release for each in alive}) > 1:
        yield RELEASES_DIFFER.found(value=len(releases))
    if (age_s := snapshot.greatest("txmsg_database_figures_age_seconds")) > _FIGURES_LATE_S:
        yield FIGURES_LATE.found(value=age_s)


def _in_figures(snapshot: DatabaseSnapshot) -> Iterator[Finding]:
    for broker, series in snapshot.series.items():
        yield from findings_in(samples_told(series, instance=broker), scope=Scope.PROCESS)
    one = next(iter(snapshot.series.values()), {})  # which has the limits of what is the database's
    yield from findings_in(samples_told({**one, **snapshot.database}, instance=""), scope=Scope.DATABASE)


VIEWS: Final = (View(path="", section="overview", template="overview.html", read=_read),)
ACTIONS: Final = ()
