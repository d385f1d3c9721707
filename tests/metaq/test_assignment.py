"""Queues are distributed evenly, each to one member, for any members and topics."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txmsg.errors import MisuseError
from txmsg.metaq.group.assignment import averaged, wanted_by
from txmsg.metaq.interface import GroupView, LogQueue, Member


def member(name: str, *topics: str) -> Member:
    return Member(name, topics, "averaged")


def queues(topic: str, count: int) -> tuple[LogQueue, ...]:
    return tuple(LogQueue(topic, number) for number in range(count))


def view(members: Collection[Member], *of_topics: Sequence[LogQueue]) -> GroupView:
    return GroupView(tuple(sorted(members)), tuple(sorted(queue for each in of_topics for queue in each)), {})


def shares(of: GroupView) -> dict[str, set[LogQueue]]:
    return {each.id: wanted_by(each.id, of, averaged) for each in of.members}


def test_first_members_get_the_remaining_queues() -> None:
    given = averaged(queues("t", 10), [member("a", "t"), member("b", "t"), member("c", "t")])
    assert {name: [queue.queue for queue in each] for name, each in given.items()} == {
        "a": [0, 1, 2, 3],
        "b": [4, 5, 6],
        "c": [7, 8, 9],
    }


def test_members_beyond_the_queues_get_none() -> None:
    assert averaged(queues("t", 1), [member("a"), member("b")]) == {"a": [LogQueue("t", 0)], "b": []}


RETRY = "%RETRY%g"
TOPICS = ("t", "u", "v", RETRY)
MEMBERS = st.dictionaries(
    st.text("abcdefgh", min_size=1, max_size=4),
    st.sets(st.sampled_from(TOPICS), min_size=1).map(lambda topics: tuple(sorted(topics))),
    min_size=1,
    max_size=9,
).map(lambda each: [Member(name, topics, "averaged") for name, topics in each.items()])


@given(MEMBERS, st.tuples(*(st.integers(0, 30) for _ in TOPICS)))
def test_every_queue_has_one_subscribed_owner_and_shares_differ_by_at_most_one(
    members: list[Member], counts: tuple[int, ...]
) -> None:
    of = view(members, *map(queues, TOPICS, counts))
    found = shares(of)
    owners = {queue: [name for name, owned in found.items() if queue in owned] for queue in of.queues}
    read = {topic for each in members for topic in each.topics}
    assert all(len(each) == (queue.topic in read) for queue, each in owners.items())
    for each in members:
        assert {queue.topic for queue in found[each.id]} <= {*each.topics}
    for readers in {each.topics for each in members}:
        alike = [each.id for each in members if each.topics == readers]
        for topic in readers:
            alone = {each for each in readers if (each == RETRY) == (topic == RETRY)}
            pool = {each for each in alone if _readers(members, each) == _readers(members, topic)}
            sizes = [sum(queue.topic in pool for queue in found[name]) for name in alike]
            assert max(sizes) - min(sizes) <= 1, (pool, sizes)


def _readers(members: list[Member], topic: str) -> list[str]:
    return [each.id for each in members if topic in each.topics]


@given(MEMBERS)
def test_single_queue_topics_are_spread_over_members_with_equal_subscriptions(members: list[Member]) -> None:
    alike = [Member(each.id, ("many",), "averaged") for each in members]
    topics = [f"t{number}" for number in range(2 * len(alike))]
    of = view([each._replace(topics=tuple(topics)) for each in alike], *(queues(topic, 1) for topic in topics))
    assert {len(each) for each in shares(of).values()} == {2}


def in_zones(*zones: str) -> list[Member]:
    """Return members a, b, c, ... that read topic t, one in each of these zones."""
    return [Member(chr(ord("a") + place), ("t",), "averaged", zone) for place, zone in enumerate(zones)]


@pytest.mark.parametrize(
    ("zones", "counts"),
    [
        (["", "north", "south", "south"], [0, 0, 5, 5]),
        (["", "north", "north"], [4, 3, 3]),
        (["", ""], [5, 5]),
        (["south"], [10]),
    ],
    ids=["those near", "nobody near", "nobody says", "one"],
)
def test_queues_go_to_members_in_the_zone_of_the_log_or_to_all(zones: list[str], counts: list[int]) -> None:
    of = replace(view(in_zones(*zones), queues("t", 10)), zone="south")
    assert [len(each) for each in shares(of).values()] == counts
    assert set().union(*shares(of).values()) == {*of.queues}


def test_zones_are_ignored_for_a_log_without_a_zone() -> None:
    assert [len(each) for each in shares(view(in_zones("", "south"), queues("t", 10))).values()] == [5, 5]


def test_topic_subscribed_only_in_other_zones_goes_to_members_there() -> None:
    far = Member("z", ("t", "u"), "averaged", "north")
    of = replace(view([*in_zones("south"), far], queues("t", 2), queues("u", 2)), zone="south")
    assert shares(of) == {"a": {*queues("t", 2)}, "z": {*queues("u", 2)}}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"a": [LogQueue("t", 0)]}, "topic t queue 1 to 0 members"),
        ({"a": queues("t", 2), "b": [LogQueue("t", 1)]}, "topic t queue 1 to 2 members"),
        ({"a": queues("t", 2), "z": []}, "'z', which is not one of the members"),
        ({"a": queues("t", 3)}, "topic t queue 2 to 1 members"),
    ],
)
def test_invalid_assignment_of_a_strategy_is_refused(given: Mapping[str, Sequence[LogQueue]], said: str) -> None:
    of = view([member("a", "t"), member("b", "t")], queues("t", 2))
    with pytest.raises(MisuseError, match=said):
        wanted_by("a", of, lambda _queues, _members: given)
