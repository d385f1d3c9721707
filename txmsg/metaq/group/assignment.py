"""Assigns queues to the members of a group. Pure: every member computes the same from the same view."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeAlias

from txmsg.errors import MisuseError, shown
from txmsg.metaq.interface import RETRIES, GroupView, LogQueue, Member

Strategy: TypeAlias = Callable[[Sequence[LogQueue], Sequence[Member]], Mapping[str, Collection[LogQueue]]]
"""Assigns each queue to one of the members, by its id. Must give the same result in every process of the group."""


def averaged(queues: Sequence[LogQueue], members: Sequence[Member]) -> dict[str, list[LogQueue]]:
    """Assign consecutive queues in equal shares; the first members get one more if the division leaves a remainder."""
    share, rest = divmod(len(queues), len(members))
    given: dict[str, list[LogQueue]] = {}
    start = 0
    for place, member in enumerate(members):
        end = start + share + (place < rest)
        given[member.id] = list(queues[start:end])
        start = end
    return given


def wanted_by(member_id: str, view: GroupView, strategy: Strategy) -> set[LogQueue]:
    """Return the queues that this member is to own.

    Queues that the same members read are shared out together, those of %RETRY%GROUP apart from others. Members of the
    log's zone come first: others are given queues only of topics that none of these reads.
    Raises MisuseError for a strategy that leaves out a queue, or gives one twice or to an unknown member.
    """
    pools: dict[tuple[bool, tuple[Member, ...]], list[LogQueue]] = {}
    for queue in view.queues:
        # Pools by the members that read a queue: a strategy may give any queue of a pool to any of its members.
        is_retry = queue.topic.startswith(RETRIES)
        readers = tuple(member for member in view.members if queue.topic in member.topics)
        if readers:
            near = tuple(member for member in readers if view.zone and member.zone == view.zone)
            pools.setdefault((is_retry, near or readers), []).append(queue)
    wanted: set[LogQueue] = set()
    for (_, readers), queues in pools.items():
        given = strategy(queues, readers)
        # A strategy is users' code. A queue given to two members would belong to the one that is faster, and one left
        # out would never be read.
        _check(given, queues, readers)
        wanted.update(given.get(member_id, ()))
    return wanted


def _check(given: Mapping[str, Collection[LogQueue]], queues: Sequence[LogQueue], members: Sequence[Member]) -> None:
    if strange := sorted(given.keys() - {member.id for member in members}):
        raise MisuseError(
            f"the strategy assigns queues to {shown(strange[0])}, which is not one of the members it was given"
        )
    told = sorted(queue for queues in given.values() for queue in queues)
    if told != sorted(queues):
        odd = next((queue for queue in queues if told.count(queue) != 1), None) or next(
            queue for queue in told if queue not in queues
        )
        raise MisuseError(
            f"the strategy assigns topic {odd[0]} queue {odd[1]} to {told.count(odd)} members: assign each queue to "
            "one member"
        )
