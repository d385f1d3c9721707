"""Findings of doctor about very many groups and topics, without a broker."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, NoReturn
from uuid import UUID

import pytest

from txmsg.administration.cluster import ClusterState, ExportedFigures
from txmsg.administration.groups import GroupList, GroupQuery, GroupSummary, TopicLag
from txmsg.administration.notify import NotifyAdministration
from txmsg.administration.topics import TopicPage, TopicsService, TopicSummary, TopicWithSettings
from txmsg.ops.doctor import brokers, groups
from txmsg.ops.doctor.brokers import ProbedCluster
from txmsg.wire.method import Method


def _group(name: str, waiting: int = 0, dead: int = 0, topic: str = "t") -> GroupSummary:
    lag = TopicLag(topic=topic, waiting=waiting, retrying=0, dead=dead)
    return GroupSummary(
        group=name, members=None, waiting=waiting, retrying=0, dead=dead, topics=[lag], created_at=datetime.now(UTC)
    )


def _all(found: list[GroupSummary], *, is_whole: bool = True) -> groups.ProbedGroups:
    return groups.ProbedGroups(found=found, is_whole=is_whole)


def test_forgotten_group_is_found_among_many_busy_ones() -> None:
    found = _all([*(_group(f"busy{number}", 1000) for number in range(100)), _group("forgotten", 999)])
    [unread] = groups.unread(found, lambda group: 0 if group.group == "forgotten" else 3, "")
    assert unread.what == "999 messages wait for group forgotten, and it has no consumer"


def test_unchecked_groups_are_counted() -> None:
    found = _all([_group(f"g{number}", 1) for number in range(1000)])
    *named, rest = groups.unread(found, lambda _: 0, "")
    assert len(named) == 20
    assert rest.what == "980 more groups have messages waiting, and were not asked for consumers"
    asked: list[str] = []

    def members_of(group: GroupSummary) -> int:
        asked.append(group.group)
        return 1

    [rest] = groups.unread(found, members_of, "")
    assert rest.what == "500 more groups have messages waiting, and were not asked for consumers"
    assert len(asked) == 500


def test_unnamed_groups_with_dead_letters_are_counted() -> None:
    *named, rest = groups.dead(_all([_group(f"g{number}", dead=1) for number in range(30)]))
    assert len(named) == 20
    assert rest.what == "there are 10 more findings of dead-letters than the 20 that are named"


def _unasked(method: Method[Any, Any], request: object) -> NoReturn:
    raise AssertionError(f"{method.name} was called")


class Endless(NotifyAdministration):
    """A cluster with endless pages of groups."""

    def __init__(self) -> None:
        super().__init__(_unasked)

    def list_groups(self, query: GroupQuery) -> GroupList:
        return GroupList(groups=[_group(f"after{query.after}")], producer_groups=[], next="x")


def test_truncated_list_of_groups_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "_PAGES_MAX", 2)
    found = groups.all_groups(Endless())
    assert [each.group for each in found.found] == ["after", "afterx"]
    [cut] = groups.unread(found, lambda _: 1, "")
    assert cut.what == "there are more groups than the first 2, which alone were looked at"


def _topics(names: list[str], next: str | None) -> TopicPage:
    values: dict[str, Any] = dict.fromkeys(TopicWithSettings.__dataclass_fields__)
    return TopicPage(
        topics=[
            TopicSummary(
                settings=TopicWithSettings(**values | {"topic": name, "created_at": datetime(2020, 1, 1, tzinfo=UTC)}),
                kept=0,
                entered=0,
            )
            for name in names
        ],
        next=next,
    )


class Reading(ProbedCluster):
    """A cluster with 30 groups, each of which reads its own topic."""

    def groups(self) -> groups.ProbedGroups:
        return _all([_group("g", topic=f"t{number}") for number in range(30)])


_STATE = ClusterState(shard=UUID(int=0), schema_revision="", brokers=(), queues=0, queues_unassigned=0, leases=None)


def test_unused_topics_are_found_on_all_pages() -> None:
    def asked(method: Method[Any, Any], query: Any) -> Any:
        assert method is TopicsService.list
        return by_page[query.after]

    ask: Any = asked

    figures = ExportedFigures(broker="one", now=datetime.now(UTC), figures=[])
    cluster = Reading(ask_at=lambda _: _unasked, ask=ask, state=_STATE, answers=(), figures=figures)
    by_page = {"": _topics(["used"], "2"), "2": _topics(["t1"], None)}
    [found] = brokers.unused_topics(cluster)
    assert found.what == "group g reads topic t1, which has never had a message"
    by_page["2"] = _topics([f"t{number}" for number in range(30)], None)
    *named, cut = brokers.unused_topics(cluster)
    assert len(named) == 20
    assert cut.what == "there are more such topics than the 20 that are named"
    by_page["2"] = _topics(["used"], "2")
    [cut] = brokers.unused_topics(cluster)
    assert cut.what == "there are more topics than the first 20,000, which alone were looked at"
