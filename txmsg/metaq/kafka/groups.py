"""The groups of a log in Kafka: joins, lists, seeks and deletes them."""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ListConsumerGroupsResult

from txmsg.errors import MisuseError, UnknownGroup, shown
from txmsg.message import check_name, is_name
from txmsg.metaq.interface import DEAD_LETTERS, RETRIES, GroupState, LogAccess, LogQueue, Member, QueueState, offsets_of
from txmsg.metaq.kafka.clients import KafkaClients
from txmsg.metaq.kafka.errors import kafka_error_of
from txmsg.metaq.kafka.member import KafkaMember
from txmsg.metaq.kafka.membership import KafkaMembership
from txmsg.metaq.kafka.names import MIRROR, kafka_name
from txmsg.metaq.kafka.probe import KafkaPartition
from txmsg.metaq.kafka.progress import ASKED, GroupOffsets, sought_in
from txmsg.wire.start import Start, check_group_start

_GONE = frozenset({KafkaError.GROUP_ID_NOT_FOUND, KafkaError.UNKNOWN_TOPIC_OR_PART})


class KafkaGroups:
    """The groups of one log. See `LogAccess` for the contract of each method. Threads may share it."""

    def __init__(self, clients: KafkaClients, admin: AdminClient, log: LogAccess, offsets: GroupOffsets) -> None:
        self._clients = clients
        self._admin = admin
        self._log = log
        self._offsets = offsets
        self._prefix = clients.address.prefix
        self._lock = threading.Lock()
        self._members: list[KafkaMember] = []

    def close(self) -> None:
        """Leave with all members that were created here."""
        with self._lock:
            members, self._members = self._members, []
        for member in members:
            if not member.is_over:
                member.leave({})

    def join(
        self,
        group: str,
        topics: Collection[str],
        *,
        start: Start = Start.earliest(),
        strategy: str = "averaged",
        zone: str = "",
    ) -> KafkaMember:
        check_name("topic", RETRIES + check_name("consumer group", group))
        self._refuse_mirror(group)
        for topic in topics:
            kafka_name(check_name("topic", topic), self._prefix)
        if strategy != "averaged":
            raise MisuseError(
                f"strategy {shown(strategy)} cannot share out queues of {self._clients.address}: Kafka does that "
                "itself; leave out `strategy`"
            )
        if zone:
            raise MisuseError(
                f"zone {shown(zone)} cannot share out queues of {self._clients.address}: leave it out, and have a "
                "member read from the nearest copy by client.rack in the file of --kafka-config"
            )
        self._store_begins(group, topics, check_group_start(start, default=Start.earliest()))
        member_id = f"{socket.gethostname()[:40]}-{os.getpid()}-{secrets.token_hex(4)}"

        def joined(topics: Collection[str], client_id: str) -> KafkaMembership:
            names = [kafka_name(topic, self._prefix) for topic in topics]
            return KafkaMembership(self._clients, self._offsets.kafka_group(group), names, client_id)

        member = KafkaMember(group, member_id, tuple(sorted(topics)), self._offsets, joined)
        with self._lock:
            self._members = [each for each in self._members if not each.is_over] + [member]
        return member

    def _store_begins(self, group: str, topics: Collection[str], start: Start) -> None:
        """Fix the group's start offsets in topics that are new to it, for all their current queues."""
        if start.kind == "earliest":  # the default of queues without a stored offset
            return
        known = {queue.topic for queue in self._offsets.stored(group).keys() | self._offsets.asked(group).keys()}
        new = [topic for topic in topics if topic not in known and not topic.startswith(RETRIES)]
        queues = [LogQueue(topic, number) for topic in new for number in self._log.queues_of(topic)]
        self._offsets.begin_at(group, offsets_of(self._log, queues, start))

    # ---- for people

    def groups(self) -> list[str]:
        def listed() -> ListConsumerGroupsResult:
            listing = self._admin.list_consumer_groups(request_timeout=self._clients.timeout_s)
            found: ListConsumerGroupsResult = listing.result()
            for error in found.errors or ():
                raise KafkaException(error)
            return found

        found = self._clients.of_group("listing the groups", listed)
        names = {group.group_id.removesuffix(ASKED) for group in found.valid or ()}
        ours = (name.removeprefix(self._prefix) for name in names if name.startswith(self._prefix))
        return sorted(name for name in ours if is_name(name) and name != MIRROR)

    def _refuse_mirror(self, group: str) -> None:
        if group == MIRROR:
            raise MisuseError(
                f"group {group} of {self._clients.address} is where a mirror notes how far it is: choose another name"
            )

    def group(self, group: str) -> GroupState:
        members, owners = self._members_of(check_name("consumer group", group))
        stored, asked = self._offsets.stored(group), self._offsets.asked(group)
        if not members and not stored and not asked and group not in self.groups():
            raise self._unknown(group)  # one that is listed is there: all topics that it read may have been deleted
        known = sorted(stored.keys() | owners.keys() | asked.keys())
        kept = self._log.ranges(known)
        offsets = {queue: at.offset for queue, at in (asked | stored).items()} | sought_in(stored, asked)
        states = (QueueState(queue, owners.get(queue), offsets.get(queue), kept[queue]) for queue in known)
        return GroupState(group, tuple(sorted(members)), tuple(states))

    def _members_of(self, group: str) -> tuple[list[Member], dict[LogQueue, str]]:
        """Return the members that Kafka knows, and the queues it has assigned to them."""
        members: list[Member] = []
        owners: dict[LogQueue, str] = {}
        for each in self._described(self._offsets.kafka_group(group)):
            assigned = [KafkaPartition(one.topic, one.partition) for one in each.assignment.topic_partitions]
            queues = [queue for partition in assigned if (queue := self._offsets.queue_of(partition)) is not None]
            owners.update(dict.fromkeys(queues, each.client_id))
            topics = tuple(sorted({queue.topic for queue in queues}))
            members.append(Member(each.client_id, topics, "averaged"))
        return members, owners

    def _described(self, name: str) -> Sequence[Any]:
        def described() -> Sequence[Any]:
            answers = self._admin.describe_consumer_groups([name], request_timeout=self._clients.timeout_s)
            try:
                members: Sequence[Any] = answers[name].result().members
            except KafkaException as exc:
                if kafka_error_of(exc).code() == KafkaError.GROUP_ID_NOT_FOUND:
                    return ()
                raise
            return members

        return self._clients.of_group(f"describing group {name!r}", described)

    def _unknown(self, group: str) -> UnknownGroup:
        return UnknownGroup(
            f"group {group} is unknown to {self._clients.address}: it is created when its first member joins; Kafka "
            "forgets groups that have had no member for offsets.retention.minutes"
        )

    def seek(self, group: str, offsets: Mapping[LogQueue, int]) -> None:
        self._refuse_mirror(group)
        self.group(group)
        self._offsets.request_offsets(group, offsets)

    def delete_group(self, group: str) -> None:
        self._refuse_mirror(group)
        state = self.group(group)
        if state.members:
            raise MisuseError(
                f"group {group} has {len(state.members)} members, such as {state.members[0].id}: stop them first"
            )
        name = self._offsets.kafka_group(group)
        for each in (name, name + ASKED):
            self._delete(f"deleting group {each!r}", self._admin.delete_consumer_groups, each)
        for mark in (RETRIES, DEAD_LETTERS):
            topic = kafka_name(mark + group, self._prefix)
            self._delete(f"deleting topic {topic!r}", self._admin.delete_topics, topic)

    def _delete(self, doing: str, delete: Callable[..., Mapping[str, Future[None]]], name: str) -> None:
        with self._clients.translated(doing):
            answers = delete([name], request_timeout=self._clients.timeout_s)
            try:
                answers[name].result()
            except KafkaException as exc:
                if kafka_error_of(exc).code() not in _GONE:
                    raise
