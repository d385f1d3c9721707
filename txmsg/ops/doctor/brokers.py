"""Probes of brokers, and of their reports on groups, topics and half messages."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from typing import Final

from txmsg.administration.ask import AskBroker, Nothing
from txmsg.administration.cluster import (
    BrokerSummary,
    ClientQuery,
    ClientSummary,
    ClusterService,
    ClusterState,
    ExportedFigures,
    ReadFigures,
    ShowCluster,
)
from txmsg.administration.groups import GroupName, GroupsService, GroupSummary
from txmsg.administration.halves import AdminService, HalfQuery
from txmsg.administration.notify import NotifyAdministration
from txmsg.administration.settings import SettingsService
from txmsg.administration.topics import TopicQuery, TopicsService
from txmsg.checks.brokers import (
    ADDRESS_SHARED,
    BROKER_DRAINED,
    BROKER_UNREACHABLE,
    CLIENT_RELEASES,
    COMMAND_RELEASE,
    CUT,
    PROCESS_DOWN,
    QUEUES_UNDELIVERED,
    RELEASES_DIFFER,
)
from txmsg.checks.check import Finding
from txmsg.checks.conditions import samples_told
from txmsg.checks.messages import CHECKS_OVERDUE, TOPIC_UNUSED
from txmsg.checks.thresholds import Thresholds
from txmsg.errors import TxmsgError
from txmsg.metrics.catalogue import Scope
from txmsg.ops.doctor import groups
from txmsg.ops.doctor.machine import different_clock
from txmsg.ops.doctor.probe import NAMED_MAX, Probe, examine, on_one_line, shown
from txmsg.settings.catalogue import settings_of

_HALVES_MAX: Final = 1000
_NEW: Final = timedelta(hours=1)
_TOPIC_PAGES_MAX: Final = 20
_CALLS_MAX: Final = 16
_CLIENTS_MAX: Final = 10_000
_ASSIGNED_S_MAX: Final = 8.0
_LOOK_S: Final = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerAnswer:
    """The answer of a living broker at its own address, or the reason why there is none."""

    broker: BrokerSummary
    figures: ExportedFigures | None
    error: str
    begun: float
    ended: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedCluster:
    """The brokers of a database, as the first one lists them and as each answers. figures: those of the database."""

    ask_at: Callable[[str], AskBroker]
    ask: AskBroker
    state: ClusterState
    answers: Sequence[BrokerAnswer]
    figures: ExportedFigures

    def groups(self) -> groups.ProbedGroups:
        """Return the consumer groups."""
        return groups.all_groups(NotifyAdministration(self.ask))


def probe_brokers(ask_at: Callable[[str], AskBroker], address: str) -> Iterator[Finding]:
    """Yield all findings about the brokers of a database, of which one is at this address."""
    try:
        cluster = asked(ask_at, address)
    except TxmsgError as exc:
        yield BROKER_UNREACHABLE.found(error=on_one_line(exc))
    else:
        yield from examine(PROBES, lambda: nullcontext(cluster))


def asked(ask_at: Callable[[str], AskBroker], address: str) -> ProbedCluster:
    """Return the answer of the broker at this address, and of each broker that it lists."""
    ask = ask_at(address)
    state = ask(ClusterService.show, ShowCluster())

    def answer(broker: BrokerSummary) -> BrokerAnswer:
        begun, figures, error = time.time(), None, ""
        try:
            figures = ask_at(broker.address)(ClusterService.figures, ReadFigures())
        except TxmsgError as exc:
            error = on_one_line(exc)
        return BrokerAnswer(broker=broker, figures=figures, error=error, begun=begun, ended=time.time())

    # At the same time: one after the other, each broker that hangs would add its whole timeout.
    with ThreadPoolExecutor(_CALLS_MAX) as threads:
        answers = list(threads.map(answer, (broker for broker in state.brokers if broker.state != "dead")))
    figures = ask(ClusterService.figures, ReadFigures(with_database=True))
    return ProbedCluster(ask_at=ask_at, ask=ask, state=state, answers=answers, figures=figures)


def broker_addresses(cluster: ProbedCluster) -> Iterator[Finding]:
    """Check that every broker answers at its advertised address, and none at that of another one."""
    for answer in cluster.answers:
        broker = answer.broker
        if answer.figures is None:
            yield PROCESS_DOWN.found(f"broker {broker.id} does not answer at {broker.address}: {answer.error}")
        elif answer.figures.broker != broker.id:
            yield ADDRESS_SHARED.found(instance=answer.figures.broker, address=broker.address, broker=broker.id)


def releases(cluster: ProbedCluster) -> Iterator[Finding]:
    """Check that all brokers and this command have the same release."""
    by_release: dict[str, list[str]] = {}
    for answer in cluster.answers:
        by_release.setdefault(answer.broker.release, []).append(answer.broker.id)
    if len(by_release) > 1:
        told = "; ".join(f"{release}: {', '.join(ids)}" for release, ids in sorted(by_release.items()))
        yield RELEASES_DIFFER.found(f"brokers are of several releases ({told})")
    own = version("txmsg")
    if by_release and own not in by_release:
        yield COMMAND_RELEASE.found(release=own, brokers=", ".join(sorted(by_release)))


def client_releases(cluster: ProbedCluster) -> Iterator[Finding]:
    """Check that clients have the same release as the brokers."""
    brokers = {answer.broker.release for answer in cluster.answers}
    found = cluster.ask(ClusterService.clients, ClientQuery(limit=_CLIENTS_MAX))
    by_release: dict[str, list[ClientSummary]] = {}
    for client in found.clients:
        by_release.setdefault(client.release, []).append(client)
    for release, of_release in sorted(by_release.items()):
        if release in brokers:
            continue
        first = of_release[0]
        group = first.consumer_group or first.producer_group
        of_group = f"of group {group}" if group else "of no group that it has a right on"
        yield CLIENT_RELEASES.found(
            value=len(of_release),
            release=release,
            of_group=of_group,
            host=first.host,
            brokers=", ".join(sorted(brokers)),
        )
    if found.more:
        yield CUT.found(left=f"more clients are attached than the first {_CLIENTS_MAX:,}, which alone were looked at")


def broker_clocks(cluster: ProbedCluster) -> Iterator[Finding]:
    """Check that the clocks of brokers and of this machine are equal."""
    for answer in cluster.answers:
        if answer.figures is not None:
            yield from different_clock(
                f"broker {answer.broker.id}", answer.figures.now.timestamp(), answer.begun, answer.ended
            )


def drained_brokers(cluster: ProbedCluster) -> Iterator[Finding]:
    """Check that no broker is drained."""
    for broker in cluster.state.brokers:
        if broker.state == "draining":
            yield BROKER_DRAINED.found(broker=broker.id)


def undelivered_queues(cluster: ProbedCluster) -> Iterator[Finding]:
    """Check that each queue is delivered by a broker, at most some seconds after it was created or its broker died."""
    state, deadline = cluster.state, time.monotonic() + _ASSIGNED_S_MAX
    # Brokers assign the queues of a dead broker, and new ones, within seconds: that is no finding.
    while state.queues_unassigned and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
        state = cluster.ask(ClusterService.show, ShowCluster())
    if state.queues_unassigned:
        yield QUEUES_UNDELIVERED.found(value=state.queues_unassigned, queues=state.queues)


def figures(cluster: ProbedCluster) -> Iterator[Finding]:
    """Yield the findings in figures of brokers and the database, as alerts have them; for overdue checks also the
    groups.
    """
    thresholds, whole = thresholds_of(cluster.ask), cluster.figures
    for answer in cluster.answers:
        if answer.figures is not None:
            # Read later than `answer.figures`, from the same broker.
            own = whole if answer.broker.id == whole.broker else answer.figures
            samples = samples_told(own.series, instance=f"broker {answer.broker.id}")
            yield from shown(samples, thresholds, Scope.PROCESS)
    for found in shown(samples_told(whole.series, instance="the database"), thresholds, Scope.DATABASE):
        yield from _unchecked(cluster, found) if found.check is CHECKS_OVERDUE else [found]


def thresholds_of(ask: AskBroker) -> Thresholds:
    """Return the broker's thresholds; the defaults, if it does not show them to this user."""
    try:
        used = {each.name: each.value for each in ask(SettingsService.show, Nothing()).used}
        values = {
            setting.name: setting.value_of(used[f"broker.alerts.{setting.name}"])
            for setting in settings_of(Thresholds)
            if f"broker.alerts.{setting.name}" in used
        }
        return Thresholds(**values)
    except TxmsgError:
        return Thresholds()


def _unchecked(cluster: ProbedCluster, overdue: Finding) -> Iterator[Finding]:
    """Yield the groups whose checks are overdue because no client can answer them."""
    page = cluster.ask(AdminService.list_halves, HalfQuery(limit=_HALVES_MAX))
    now = datetime.now(UTC)
    counts = Counter(half.group for half in page.halves if not half.n and half.is_unanswerable(now))
    for group, count in counts.most_common(NAMED_MAX):
        yield CHECKS_OVERDUE.found(
            f"{count} transactions of producer group {group} are not checked, since no client can answer; of all "
            f"groups {overdue.what}"
        )
    if not counts:
        yield overdue
    elif page.next or len(counts) > NAMED_MAX:
        yield CUT.found(
            left=f"there are more half messages than the first {_HALVES_MAX:,}, or more groups than are named"
        )


def unread_groups(cluster: ProbedCluster) -> Iterator[Finding]:
    """Check that each group with waiting messages has a consumer."""

    def members(group: GroupSummary) -> int:
        asked = (cluster.ask_at(answer.broker.address) for answer in cluster.answers if answer.figures)
        return sum(len(ask(GroupsService.show, GroupName(group=group.group)).members) for ask in asked)

    yield from groups.unread(cluster.groups(), members, of_log="")


def unused_topics(cluster: ProbedCluster) -> Iterator[Finding]:
    """Check that each topic that a group reads has had a message."""
    read = {lag.topic: group.group for group in cluster.groups().found for lag in group.topics}
    named, after = 0, ""
    for _ in range(_TOPIC_PAGES_MAX):
        page = cluster.ask(TopicsService.list, TopicQuery(limit=groups.PAGE, after=after))
        for topic in page.topics:
            name, created_at = topic.settings.topic, topic.settings.created_at
            is_new = created_at > datetime.now(UTC) - _NEW
            # A topic of the last hour has had little time for a first message.
            if name not in read or topic.entered or is_new:
                continue
            if named == NAMED_MAX:
                yield CUT.found(left=f"there are more such topics than the {named} that are named")
                return
            named += 1
            yield TOPIC_UNUSED.found(group=read[name], topic=name)
        if page.next is None:
            return
        after = page.next
    looked_at = _TOPIC_PAGES_MAX * groups.PAGE
    yield CUT.found(left=f"there are more topics than the first {looked_at:,}, which alone were looked at")


PROBES: Final[tuple[Probe[ProbedCluster], ...]] = (
    broker_addresses,
    releases,
    client_releases,
    broker_clocks,
    drained_brokers,
    undelivered_queues,
    figures,
    unread_groups,
    unused_topics,
)
