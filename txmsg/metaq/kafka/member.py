"""A member of a group, as log consumers use it: the queues that Kafka assigns to it, and queue offsets stored in Kafka.

Kafka does the assignment: members do not see each other, and each sees only its own queues, with itself as the only
reader.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping
from typing import Final

from txmsg.errors import BrokerUnavailable, MembershipLost, MisuseError
from txmsg.metaq.interface import DEAD_LETTERS, RETRIES, GroupView, LogQueue, Member
from txmsg.metaq.kafka.membership import KafkaMembership
from txmsg.metaq.kafka.probe import KafkaPartition
from txmsg.metaq.kafka.progress import GroupOffsets, Stored, sought_in
from txmsg.runtime.forks import renew_in_children

_SETTLE_S_MAX: Final = 60.0
_TRIM_S: Final = 60.0
"""Seconds between two deletions of retries that were delivered."""


class KafkaMember:
    """A member of a group in Kafka. See `GroupMember` for the contract of each method."""

    def __init__(
        self,
        group: str,
        member_id: str,
        topics: tuple[str, ...],
        offsets: GroupOffsets,
        joined: Callable[[Collection[str], str], KafkaMembership],
    ) -> None:
        self.group = group
        self.id = member_id
        self._topics = topics
        self._offsets = offsets
        self._joined = joined
        self._membership = joined(topics, member_id) if topics else None
        self._owned: dict[LogQueue, Stored] = {}
        self._asked: dict[LogQueue, Stored] = {}
        self._done: dict[LogQueue, int] = {}  # retries and dead letters before it can be deleted
        self._trim_at = time.monotonic() + _TRIM_S
        self.has_left = False
        self._is_copy = False
        renew_in_children(self)

    def _renew(self) -> None:
        self._is_copy = True

    @property
    def is_over(self) -> bool:
        """True if it has left, or has lost its membership."""
        return self.has_left or (self._membership is not None and self._membership.is_over)

    # ---- as a member

    def view(self) -> GroupView:
        queues = filter(None, map(self._offsets.queue_of, self._require_member().assigned()))
        self._asked = self._offsets.asked(self.group, self._owned) if self._owned else {}
        sought = sought_in(self._owned, self._asked)
        return GroupView((Member(self.id, self._topics, "averaged"),), tuple(sorted(queues)), sought)

    def take_queues(self, queues: Collection[LogQueue]) -> dict[LogQueue, int]:
        if self._membership is None:  # one that reads nothing, and deals with dead letters
            self._membership = self._settled({queue.topic for queue in queues})
        membership = self._require_member()
        by_partition = {self._offsets.partition_of(queue): queue for queue in queues}
        held = {by_partition[partition]: partition for partition in membership.hold_partitions(by_partition)}
        new = {queue: partition for queue, partition in held.items() if queue not in self._owned}
        try:
            self._store_begins(membership, new)
        except BaseException:
            membership.let_go(new.values())
            raise
        return {queue: self._owned[queue].offset for queue in held}

    def _settled(self, topics: Collection[str]) -> KafkaMembership:
        membership = self._joined(topics, self.id)
        if not membership.settled.wait(_SETTLE_S_MAX):
            membership.leave()
            raise BrokerUnavailable(
                f"Kafka has not made member {self.id} one of group {self.group} within {_SETTLE_S_MAX:g} s: another "
                "member may be finishing its handlers; try again"
            )
        return membership

    def _store_begins(self, membership: KafkaMembership, new: Mapping[LogQueue, KafkaPartition]) -> None:
        """Continue where the last owner was, where a seek requested, or where the group begins."""
        if not new:
            return
        stored = self._offsets.stored_of(membership.committed(new.values()))
        begun = self._offsets.begun(self.group, new, stored)
        self._commit(membership, {queue: at for queue, at in begun.items() if stored.get(queue) != at})
        self._owned.update(begun)

    def store(self, offsets: Mapping[LogQueue, int]) -> None:
        self._store({queue: Stored(offset, self._require_owned(queue).asked) for queue, offset in offsets.items()})

    def seek_done(self, offsets: Mapping[LogQueue, int]) -> None:
        done: dict[LogQueue, Stored] = {}
        for queue, offset in offsets.items():
            owned, asked = self._require_owned(queue), self._asked.get(queue)
            # A member's own seek goes elsewhere: what others have asked for stays to be done.
            done[queue] = asked if asked is not None and asked.offset == offset else Stored(offset, owned.asked)
        self._store(done)

    def release(self, offsets: Mapping[LogQueue, int]) -> None:
        self.store(offsets)
        self._require_member().let_go([self._offsets.partition_of(queue) for queue in offsets])
        for queue in offsets:
            del self._owned[queue]

    def leave(self, offsets: Mapping[LogQueue, int]) -> None:
        if self.has_left or self._is_copy:
            return
        try:
            if self._owned:
                self.store({queue: offset for queue, offset in offsets.items() if queue in self._owned})
        finally:
            self.has_left = True
            if self._membership is not None:
                self._membership.leave()
        self._trim()

    # ---- offsets

    def _store(self, offsets: Mapping[LogQueue, Stored]) -> None:
        membership = self._require_member()
        new = {queue: at for queue, at in offsets.items() if self._owned[queue] != at}
        self._commit(membership, new)
        self._owned.update(new)
        if time.monotonic() >= self._trim_at:
            self._trim()

    def _commit(self, membership: KafkaMembership, offsets: Mapping[LogQueue, Stored]) -> None:
        if not offsets:
            return
        membership.commit(self._offsets.commits_of(offsets))
        # Others may read these topics, too. Dead letters are dealt with by who joins for no topics: redrive and purge.
        ours = {RETRIES + self.group} if self._topics else {RETRIES + self.group, DEAD_LETTERS + self.group}
        self._done.update((queue, at.offset) for queue, at in offsets.items() if queue.topic in ours)

    def _trim(self) -> None:
        """Delete retries that were delivered and dead letters that were dealt with: Kafka would keep them forever."""
        self._trim_at = time.monotonic() + _TRIM_S
        done, self._done = self._done, {}
        if done:
            self._offsets.delete_before(done)

    # ---- what it may

    def _require_member(self) -> KafkaMembership:
        if self._is_copy:
            raise MisuseError(
                f"process {os.getpid()} was forked from member {self.id} of group {self.group}, and is not a member "
                "itself: join again"
            )
        if self.has_left:
            raise MembershipLost(f"member {self.id} has left group {self.group}: join again")
        if self._membership is None:
            raise MisuseError(f"member {self.id} of group {self.group} has joined for no topic, and has taken no queue")
        return self._membership

    def _require_owned(self, queue: LogQueue) -> Stored:
        owned = self._owned.get(queue)
        if owned is None:
            raise MisuseError(
                f"topic {queue.topic} queue {queue.queue} is not owned by member {self.id} of group {self.group}: "
                "nothing was stored"
            )
        return owned
