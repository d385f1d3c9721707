"""The partitions that Kafka assigns to a member of a group, followed by a separate thread.

Kafka's own protocol assigns partitions (classic, cooperative: partitions that stay with a member continue to be read
during a rebalance). If Kafka revokes a partition, the next member does not get it before its current holder has
released it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, Final, NamedTuple, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from txmsg.errors import BrokerUnavailable, MembershipLost, TxmsgError, printable
from txmsg.metaq.interface import SESSION_S
from txmsg.metaq.kafka.clients import KafkaClients
from txmsg.metaq.kafka.errors import kafka_error_of
from txmsg.metaq.kafka.probe import KafkaPartition
from txmsg.runtime.logs import EventLog

_log = EventLog(__name__)
T = TypeVar("T")

HELD_S_MAX: Final = 300.0
"""Seconds that a partition which Kafka revokes may still be held: handlers are waited for that long."""
_HEARTBEAT_S: Final = 1.0
_LOOK_S: Final = 0.1
"""Seconds between two polls of Kafka, unless there is a call to make."""
_CLOSE_S_MAX: Final = 15.0
_COMMIT_S_MAX: Final = 30.0

_STEPS_ON: Final = frozenset(
    {KafkaError.REBALANCE_IN_PROGRESS, KafkaError.ILLEGAL_GENERATION, KafkaError._WAIT_COORD, KafkaError._IN_PROGRESS}
)
"""Codes after which a commit is repeated: it met a rebalance.

The partitions are still the member's, or it hears that they are not.
"""
_NOT_MEMBER: Final = frozenset({KafkaError.UNKNOWN_MEMBER_ID, KafkaError.FENCED_INSTANCE_ID})
_OF_READING: Final = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})
"""Errors of reading that are ignored: offset 0 may have expired, and this consumer reads nothing."""
_NOT_THERE_YET: Final = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC})


class PartitionProgress(NamedTuple):
    """The stored progress of a partition: the offset of its next record, and a note."""

    offset: int
    note: str


class KafkaMembership:
    """The only user of a Kafka consumer, on its own thread: confluent-kafka is not safe for threads, and a wait would
    block other callers.

    Other threads run their calls on it with `do`, even while Kafka waits for partitions to be released.
    """

    def __init__(self, clients: KafkaClients, group: str, topics: Collection[str], client_id: str) -> None:
        self._clients = clients
        self._group = group
        self._client_id = client_id
        self._consumer = clients.consumer(
            group,
            client_id=client_id,
            partition_assignment_strategy="cooperative-sticky",
            session_timeout_ms=round(SESSION_S * 1000),
            heartbeat_interval_ms=round(_HEARTBEAT_S * 1000),
            # Kafka may wait for held partitions inside a poll (`_on_revoke`), so the interval must be longer than
            # handlers are waited for.
            max_poll_interval_ms=round((HELD_S_MAX + SESSION_S) * 1000),
            fetch_message_max_bytes=1024,  # nothing is read by this consumer: its partitions are paused at once
        )
        self._calls: SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = SimpleQueue()
        self._ending = threading.Lock()
        self._has_ended = False
        self._is_leaving = False
        self._lost = ""
        self._trouble: TxmsgError | None = None
        self._member_id = ""
        self._assigned: set[KafkaPartition] = set()
        self._held: set[KafkaPartition] = set()
        self.settled = threading.Event()
        """Set when Kafka has first reported this member's partitions, if any."""
        self._consumer.subscribe(
            list(topics), on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )
        self._thread = threading.Thread(target=self._run, name=f"txmsg-kafka-{group}", daemon=True)
        self._thread.start()

    # ---- for the member

    @property
    def is_over(self) -> bool:
        """True if it has left, or was removed from the group."""
        return self._has_ended

    def assigned(self) -> set[KafkaPartition]:
        """Return the partitions that may be held now. Raises each error of Kafka once."""

        def look() -> set[KafkaPartition]:
            trouble, self._trouble = self._trouble, None
            if trouble is not None:
                raise trouble
            return set(self._assigned)

        return self._do(look)

    def hold_partitions(self, wanted: Collection[KafkaPartition]) -> list[KafkaPartition]:
        """Hold those of these partitions that are assigned, until they are released."""

        def hold() -> list[KafkaPartition]:
            mine = [partition for partition in wanted if partition in self._assigned]
            self._held.update(mine)
            return mine

        return self._do(hold)

    def let_go(self, held: Collection[KafkaPartition]) -> None:
        """Let Kafka assign them to other members."""
        self._do(lambda: self._held.difference_update(held))

    def committed(self, partitions: Collection[KafkaPartition]) -> dict[KafkaPartition, PartitionProgress]:
        """Return the group's stored progress of these partitions."""
        asked = [TopicPartition(*partition) for partition in partitions]
        found = self._clients.of_group(
            f"reading the offsets of group {self._group!r}",
            lambda: self._do(lambda: self._consumer.committed(asked, timeout=self._clients.timeout_s)),
        )
        return commits_of(self._clients, self._group, found)

    def commit(self, commits: dict[KafkaPartition, PartitionProgress]) -> None:
        """Store progress of held partitions. Raises MembershipLost if other members own them by now."""
        if not commits:
            return
        offsets = [TopicPartition(*partition, *commit) for partition, commit in commits.items()]
        deadline = time.monotonic() + _COMMIT_S_MAX
        while (error := self._do(lambda: self._commit(offsets))) is not None:
            doing = f"storing offsets of group {self._group!r}"
            if error.code() not in _STEPS_ON:
                raise self._clients.error(error, doing)
            if time.monotonic() > deadline:
                raise BrokerUnavailable(
                    f"{doing} of {self._clients.address} met a rebalance for {_COMMIT_S_MAX:g} s: it is tried again"
                )
            time.sleep(_LOOK_S)

    def _commit(self, offsets: list[TopicPartition]) -> KafkaError | None:
        # One that has lost its place has no id, until it has a new one: Kafka would store for it if the group is empty.
        # Checked on the thread that polls, so the id cannot change between the check and the commit.
        if self._consumer.memberid() != self._member_id:
            self._lose("Kafka did not hear of it in time")
        if self._lost:
            raise self._no_member()
        try:
            stored = self._consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as exc:
            error: KafkaError | None = kafka_error_of(exc)
        else:
            error = next((each.error for each in stored if each.error is not None), None)
        if error is not None and error.code() in _NOT_MEMBER:
            self._lose(printable(error.str()))
            raise self._no_member()
        return error

    def leave(self) -> None:
        """Leave the group. Partitions that are still held go to other members. Leaving twice is fine."""
        self._is_leaving = True
        self._thread.join(_CLOSE_S_MAX)

    def _do(self, call: Callable[[], T]) -> T:
        future: Future[T] = Future()
        with self._ending:
            if self._has_ended:
                raise self._no_member()
            self._calls.put((call, future))
        return future.result()

    def _no_member(self) -> MembershipLost:
        return MembershipLost(
            f"member {self._client_id} has lost its place in group {self._group} of {self._clients.address}: "
            f"{self._lost or 'it left'}"
        )

    # ---- in its thread

    def _run(self) -> None:
        try:
            while not self._is_leaving and not self._lost:
                self._serve()
                message = self._consumer.poll(0)
                if message is not None and (error := message.error()) is not None:
                    self._on_error(error)
        except Exception as exc:  # noqa: BLE001 - the root of a thread: callers are told
            _log.exception("member.thread_failed", "group %(group)s: a member has failed", group=self._group)
            self._lose(str(exc))
        finally:
            with self._ending:
                # Under the lock, so that no call is put into the queue after it was emptied for the last time.
                self._has_ended = True
            while not self._calls.empty():
                self._calls.get()[1].set_exception(self._no_member())
            self._close()

    def _close(self) -> None:
        # librdkafka's close leaves out telling Kafka when a cooperative member has no partitions at that moment:
        # then others would wait for its session to expire.
        self._consumer.unsubscribe()
        self._consumer.close()

    def _serve(self) -> None:
        """Execute the next call, if one arrives soon."""
        try:
            call, future = self._calls.get(timeout=_LOOK_S)
        except Empty:
            return
        try:
            future.set_result(call())
        except BaseException as exc:  # noqa: BLE001 - it is the caller's
            future.set_exception(exc)

    def _lose(self, why: str) -> None:
        self._lost = self._lost or why
        self._assigned.clear()
        self.settled.set()

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal() or error.code() == KafkaError._MAX_POLL_EXCEEDED:
            self._lose(printable(error.str()))
        elif error.code() not in _NOT_THERE_YET | _OF_READING:
            self._trouble = self._clients.error(error, f"being a member of group {self._group!r}")

    # ---- what Kafka says, called while it is polled

    def _on_assign(self, consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        # Not from the stored offset: nothing is read here.
        consumer.incremental_assign([TopicPartition(each.topic, each.partition, 0) for each in partitions])
        # Reading is done by other consumers: this one only has to be a member.
        consumer.pause(list(partitions))
        self._member_id = consumer.memberid()
        self._assigned.update(KafkaPartition(each.topic, each.partition) for each in partitions)
        self.settled.set()

    def _on_revoke(self, _: Consumer, partitions: Sequence[TopicPartition]) -> None:
        """Return when all these partitions are released; then other members get them."""
        gone = {KafkaPartition(each.topic, each.partition) for each in partitions}
        self._assigned -= gone
        deadline = time.monotonic() + HELD_S_MAX
        while self._held & gone and not self._is_leaving and not self._lost:
            if time.monotonic() > deadline:
                self._lose(f"its handlers have held what is to go to others for {HELD_S_MAX:g} s")
            # Calls are still served while Kafka waits: the handlers' offsets have to be stored before their partitions
            # can be released.
            self._serve()

    def _on_lost(self, _: Consumer, __: Sequence[TopicPartition]) -> None:
        self._lose("Kafka did not hear of it in time")


def commits_of(
    clients: KafkaClients, group: str, found: Sequence[TopicPartition]
) -> dict[KafkaPartition, PartitionProgress]:
    """Return the stored progress in an answer of Kafka; partitions without an offset are omitted."""
    commits: dict[KafkaPartition, PartitionProgress] = {}
    for each in found:
        if each.error is not None and each.error.code() not in _NOT_THERE_YET:
            raise clients.error(each.error, f"reading the offsets of group {group!r}")
        if each.error is None and each.offset >= 0:
            commits[KafkaPartition(each.topic, each.partition)] = PartitionProgress(each.offset, each.metadata or "")
    return commits
