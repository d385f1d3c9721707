"""Checks of brokers, and of what they tell of groups, topics and half messages."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from typing import Final

from txmsg.administration.ask import Ask
from txmsg.administration.cluster import (
    BrokerFigures,
    BrokerSummary,
    Client,
    ClientQuery,
    ClusterState,
    ReadFigures,
    ShowCluster,
)
from txmsg.administration.cluster import Cluster as ClusterService
from txmsg.administration.groups import GroupName, Groups, GroupSummary
from txmsg.administration.halves import Admin, HalfQuery
from txmsg.administration.notify import NotifyAdministration
from txmsg.administration.topics import TopicQuery, Topics
from txmsg.checks.thresholds import DEFAULTS
from txmsg.doctor import groups
from txmsg.doctor.database import KEEP_LESS, different_clock
from txmsg.doctor.disk import free_share
from txmsg.doctor.finding import Check, Finding, certificate, cut, examine, on_one_line, problem, warning
from txmsg.errors import TxmsgError
from txmsg.metrics.catalogue import CATALOGUE, GROUP, OTHER, TOPIC

_LAG_S_MAX: Final = DEFAULTS.group_behind_s
_IN_DOUBT_S_MAX: Final = DEFAULTS.in_doubt_s
_OVERDUE_S_MAX: Final = DEFAULTS.check_overdue_s
_HALVES_MAX: Final = 1000
_BOUND_SHARE: Final = DEFAULTS.bound_ratio
_NEW: Final = timedelta(hours=1)
_TOPIC_PAGES_MAX: Final = 20
_CALLS_MAX: Final = 16
_CLIENTS_MAX: Final = 10_000
_ASSIGNED_S_MAX: Final = 8.0
_LOOK_S: Final = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a broker that is alive said when it was called at its own address, or why it did not."""

    broker: BrokerSummary
    figures: BrokerFigures | None
    error: str
    begun: float
    ended: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The brokers of a database, as the first one tells of them and as each answers. figures: those of the database."""

    ask_at: Callable[[str], Ask]
    ask: Ask
    state: ClusterState
    answers: Sequence[Answer]
    figures: BrokerFigures

    def values(self, metric: str, **where: str) -> Iterator[tuple[Mapping[str, str], float]]:
        """The series of a metric of the database, by labels."""
        yield from _values(self.figures, metric, where)

    def groups(self) -> groups.Groups:
        """The consumer groups."""
        return groups.all_groups(NotifyAdministration(self.ask))


def look(ask_at: Callable[[str], Ask], address: str) -> Iterator[Finding]:
    """Everything that is wrong with the brokers of a database, of which one is at this address."""
    try:
        cluster = asked(ask_at, address)
    except TxmsgError as exc:
        found = problem(
            on_one_line(exc),
            why="state that only brokers know is not checked, and clients with this address do not start",
            fix="start `txmsg broker`, or name another one with --broker",
        )
        yield replace(found, check="broker-reachable")
    else:
        yield from examine(CHECKS, lambda: nullcontext(cluster))


def asked(ask_at: Callable[[str], Ask], address: str) -> Cluster:
    """What the broker at this address says, and each of those that it knows at its own."""
    ask = ask_at(address)
    state = ask(ClusterService.show, ShowCluster())

    def answer(broker: BrokerSummary) -> Answer:
        begun, figures, error = time.time(), None, ""
        try:
            figures = ask_at(broker.address)(ClusterService.figures, ReadFigures())
        except TxmsgError as exc:
            error = on_one_line(exc)
        return Answer(broker=broker, figures=figures, error=error, begun=begun, ended=time.time())

    with ThreadPoolExecutor(_CALLS_MAX) as threads:
        answers = list(threads.map(answer, (broker for broker in state.brokers if broker.state != "dead")))
    figures = ask(ClusterService.figures, ReadFigures(with_database=True))
    return Cluster(ask_at=ask_at, ask=ask, state=state, answers=answers, figures=figures)


def broker_addresses(cluster: Cluster) -> Iterator[Finding]:
    """Every broker answers at its advertised address."""
    for answer in cluster.answers:
        if answer.figures is None:
            yield problem(
                f"broker {answer.broker.id} does not answer at {answer.broker.address}: {answer.error}",
                why="consumers poll every broker: what this one delivers does not reach clients that are where this "
                "machine is",
                fix="start it, open the port, or give it the address that clients reach with --advertise HOST:PORT",
            )
        elif answer.figures.broker != answer.broker.id:
            yield problem(
                f"{answer.figures.broker} answers at {answer.broker.address}, the address of broker {answer.broker.id}",
                why="clients confuse the two: messages of one of them are not delivered",
                fix="give each broker an address of its own with --advertise HOST:PORT",
            )


def releases(cluster: Cluster) -> Iterator[Finding]:
    """All brokers and this command have the same release."""
    by_release: dict[str, list[str]] = {}
    for answer in cluster.answers:
        by_release.setdefault(answer.broker.release, []).append(answer.broker.id)
    if len(by_release) > 1:
        told = "; ".join(f"{release}: {', '.join(ids)}" for release, ids in sorted(by_release.items()))
        yield warning(
            f"brokers are of several releases ({told})",
            why="different releases should run side by side only during an upgrade",
            fix="finish it: `txmsg cluster drain BROKER`, install, restart, one after the other",
        )
    own = version("txmsg")
    if by_release and own not in by_release:
        yield warning(
            f"this command is of release {own}, the brokers of {', '.join(sorted(by_release))}",
            why="it may report problems that do not exist, and miss others",
            fix="run `txmsg doctor` of their release",
        )


def client_releases(cluster: Cluster) -> Iterator[Finding]:
    """Clients have the same release as the brokers."""
    brokers = {answer.broker.release for answer in cluster.answers}
    found = cluster.ask(ClusterService.clients, ClientQuery(limit=_CLIENTS_MAX))
    by_release: dict[str, list[Client]] = {}
    for client in found.clients:
        by_release.setdefault(client.release, []).append(client)
    for release, of_release in sorted(by_release.items()):
        if release in brokers:
            continue
        first = of_release[0]
        group = first.consumer_group or first.producer_group
        of_group = f"of group {group}" if group else "of no group that it has a right on"
        yield warning(
            f"{len(of_release)} clients are of release {release}, the first {of_group} on {first.host}; the brokers "
            f"are of {', '.join(sorted(brokers))}",
            why="different releases should run side by side only during an upgrade",
            fix="upgrade brokers first, then these applications; `txmsg cluster clients` lists them",
        )
    if found.more:
        yield cut(f"more clients are attached than the first {_CLIENTS_MAX:,}, which alone were looked at")


def broker_clocks(cluster: Cluster) -> Iterator[Finding]:
    """The clocks of brokers and of this machine are equal."""
    for answer in cluster.answers:
        if answer.figures is not None:
            yield from different_clock(
                f"broker {answer.broker.id}", answer.figures.now.timestamp(), answer.begun, answer.ended
            )


def broker_states(cluster: Cluster) -> Iterator[Finding]:
    """Brokers deliver: none is drained, and none has died without another in its place."""
    alive = {answer.broker.address for answer in cluster.answers}
    are_missing = any(count for _, count in cluster.values("txmsg_brokers_dead"))
    for broker in cluster.state.brokers:
        if broker.state == "draining":
            yield warning(
                f"broker {broker.id} is drained",
                why="it delivers nothing and accepts no messages",
                fix=f"`txmsg cluster resume {broker.id}`, unless it is under maintenance",
            )
        elif broker.state == "dead" and are_missing and broker.address not in alive:
            yield warning(
                f"broker {broker.id} at {broker.address} has died, and there is none at its address now",
                why="the others do its work, and one fewer may fail before delivery stops",
                fix=f"look at its log, and start it again; or `txmsg cluster forget {broker.id}` if it is gone",
            )


def undelivered_queues(cluster: Cluster) -> Iterator[Finding]:
    """Each queue is delivered by a broker, at the latest some seconds after it was created or its broker died."""
    state, deadline = cluster.state, time.monotonic() + _ASSIGNED_S_MAX
    while state.queues_unassigned and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
        state = cluster.ask(ClusterService.show, ShowCluster())
    if state.queues_unassigned:
        yield problem(
            f"no broker delivers {state.queues_unassigned} of {state.queues} queues",
            why="their messages wait",
            fix="`txmsg cluster show --by-queue` names them; the logs of the brokers say why they do not take them",
        )


def bounds(cluster: Cluster) -> Iterator[Finding]:
    """No bounded resource of a broker is nearly exhausted."""
    for answer in cluster.answers:
        if answer.figures is None:
            continue
        for labels, share in _values(answer.figures, "txmsg_bound_used_ratio", {}):
            if share > _BOUND_SHARE:
                yield warning(
                    f"{labels['bound']} of broker {answer.broker.id} is {share:.0%} full",
                    why="at the bound, further requests wait or are refused (docs/limits.md)",
                    fix="find what is slow, or add brokers; `txmsg config explain broker` lists the bounds",
                )


def certificates(cluster: Cluster) -> Iterator[Finding]:
    """The certificates of brokers are valid for weeks."""
    for answer in cluster.answers:
        if answer.figures is not None:
            for _, remaining_s in _values(answer.figures, "txmsg_tls_certificate_remaining_seconds", {}):
                yield from certificate(remaining_s, f"broker {answer.broker.id}")


def database_disk(cluster: Cluster) -> Iterator[Finding]:
    """The disk of the database has free space, as brokers on its machine see it."""
    for _, share in cluster.values("txmsg_disk_free_ratio"):
        yield from free_share(share, "the database", KEEP_LESS)


def undecided_transactions(cluster: Cluster) -> Iterator[Finding]:
    """No transaction is parked, and none stays undecided although it is checked."""
    for _, count in cluster.values("txmsg_halves", state="parked"):
        if count:
            yield warning(
                f"{count:.0f} transactions are parked",
                why="no client could tell whether they committed: their messages wait for an operator",
                fix="`txmsg half list --parked`; then `txmsg half resume`, `commit` or `rollback`",
            )
    for _, oldest_s in cluster.values("txmsg_half_oldest_seconds", state="in_doubt"):
        if oldest_s > _IN_DOUBT_S_MAX:
            yield warning(
                f"a transaction has been undecided for {oldest_s:.0f} s, although it is checked",
                why="its messages wait, and later ones of their ordering keys wait behind them",
                fix="`txmsg half list`: is a client of its producer group running, and does its check listener answer?",
            )


def unchecked_transactions(cluster: Cluster) -> Iterator[Finding]:
    """Each transaction is checked when its check is due: a client of its producer group can answer."""
    overdue_s = max((value for _, value in cluster.values("txmsg_half_overdue_seconds")), default=0.0)
    if overdue_s <= _OVERDUE_S_MAX:
        return
    page = cluster.ask(Admin.list_halves, HalfQuery(limit=_HALVES_MAX))
    now = datetime.now(UTC)
    counts = Counter(half.group for half in page.halves if not half.n and half.is_unanswerable(now))
    why = "their messages wait, undecided, and later ones of their ordering keys wait behind them"
    for group, count in counts.most_common(groups.NAMED_MAX):
        yield warning(
            f"{count} transactions of producer group {group} are not checked, since no client can answer; of all "
            f"groups the oldest check has been due for {overdue_s:.0f} s",
            why=why,
            fix=f"start a client of {group} that reads its fence; or `txmsg half list --group {group}`, then "
            "`txmsg half commit` or `rollback`",
        )
    if not counts:
        yield warning(
            f"the check of a transaction has been due for {overdue_s:.0f} s",
            why=why,
            fix="`txmsg half list` names it; the brokers' logs say why they do not check it",
        )
    elif page.next or len(counts) > groups.NAMED_MAX:
        yield cut(f"there are more half messages than the first {_HALVES_MAX:,}, or more groups than are named")


def lag(cluster: Cluster) -> Iterator[Finding]:
    """No group lags behind by minutes."""
    for labels, lag_s in cluster.values("txmsg_group_lag_seconds"):
        if lag_s <= _LAG_S_MAX:
            continue
        if labels[GROUP] == OTHER:
            yield warning(
                f"one of the groups that figures do not name is {lag_s:.0f} s behind",
                why="its consumers see messages late",
                fix="`txmsg group list` shows for how many messages each group waits",
            )
        else:
            yield warning(
                f"group {labels[GROUP]} is {lag_s:.0f} s behind in topic {labels[TOPIC]}",
                why="its consumers see messages late",
                fix=f"`txmsg group show {labels[GROUP]}`; more concurrency or processes, if its consumers run",
            )


def unread_groups(cluster: Cluster) -> Iterator[Finding]:
    """Each group with waiting messages has a consumer."""

    def members(group: GroupSummary) -> int:
        asked = (cluster.ask_at(answer.broker.address) for answer in cluster.answers if answer.figures)
        return sum(len(ask(Groups.show, GroupName(group=group.group)).members) for ask in asked)

    yield from groups.unread(cluster.groups(), members, of_log="")


def dead_letters(cluster: Cluster) -> Iterator[Finding]:
    """No group has dead letters."""
    yield from groups.dead(cluster.groups(), of_log="")


def unused_topics(cluster: Cluster) -> Iterator[Finding]:
    """Each topic that a group reads has had a message."""
    read = {lag.topic: group.group for group in cluster.groups().found for lag in group.topics}
    named, after = 0, ""
    for _ in range(_TOPIC_PAGES_MAX):
        page = cluster.ask(Topics.list, TopicQuery(limit=groups.PAGE, after=after))
        for topic in page.topics:
            name, created_at = topic.settings.topic, topic.settings.created_at
            is_new = created_at > datetime.now(UTC) - _NEW
            if name not in read or topic.entered or is_new:
                continue
            if named == groups.NAMED_MAX:
                yield cut(f"there are more such topics than the {named} that are named")
                return
            named += 1
            yield warning(
                f"group {read[name]} reads topic {name}, which has never had a message",
                why="its name may be misspelt, in the consumer or in the producer",
                fix=f"`txmsg topic list`; then `txmsg group delete {read[name]}` and `txmsg topic delete {name}`",
            )
        if page.next is None:
            return
        after = page.next
    looked_at = _TOPIC_PAGES_MAX * groups.PAGE
    yield cut(f"there are more topics than the first {looked_at:,}, which alone were looked at")


def _values(figures: BrokerFigures, metric: str, where: Mapping[str, str]) -> Iterator[tuple[Mapping[str, str], float]]:
    names = CATALOGUE[metric].labels
    for (name, values), value in figures.series.items():
        labels = dict(zip(names, values, strict=True)) if name == metric else {}
        if name == metric and where.items() <= labels.items():
            yield labels, value


CHECKS: Final[tuple[Check[Cluster], ...]] = (
    broker_addresses,
    releases,
    client_releases,
    broker_clocks,
    broker_states,
    undelivered_queues,
    bounds,
    certificates,
    database_disk,
    undecided_transactions,
    unchecked_transactions,
    lag,
    unread_groups,
    dead_letters,
    unused_topics,
)
