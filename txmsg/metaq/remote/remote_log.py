"""A log at the address of a server, as `LogAccess`. Frames arrive as they are on its disk, and are verified here."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, Self

from txmsg.errors import MisuseError, ProtocolError, TxmsgError
from txmsg.message import ReceivedMessage
from txmsg.metaq.acks import Acks
from txmsg.metaq.format.batch import FrameBatch
from txmsg.metaq.interface import (
    FETCH_SIZE_BYTES_MAX,
    SESSION_S,
    Fetched,
    GroupState,
    LogGroupSettings,
    LogQueue,
    QueueRange,
    QueueState,
)
from txmsg.metaq.protocol import (
    ID_SIZE_BYTES,
    batch_of_append,
    batches_of_frames,
    delayed_of,
    error_of_log_error,
    group_settings_of,
    member_of,
    message_of_found,
    sets_of_queues,
    settings_of,
    wire_offsets,
    wire_settings,
)
from txmsg.metaq.remote.calls import RemoteServer
from txmsg.metaq.remote.remote_member import RemoteMember
from txmsg.metaq.store.delayed import Delayed
from txmsg.metaq.store.log import Append
from txmsg.metaq.store.state import LogIdentity
from txmsg.metaq.store.topics import TopicSettings
from txmsg.runtime.forks import renew_in_children
from txmsg.wire.address import UNIX, check_address
from txmsg.wire.credential import TokenChoice
from txmsg.wire.method import Method, ReplyT, RequestT
from txmsg.wire.start import Start, check_group_start
from txmsg.wire.tls import TlsChoice
from txmsg.wire.v1 import metaq_pb2 as pb
from txmsg.wire.v1.metaq_rpc import MetaQ, MetaQGroups

_UNKNOWN: Final = -1
_WAIT_S_MAX: Final = 20.0
"""Seconds that one request waits at most; a longer wait is several requests."""
_TIMEOUT_S_MAX: Final = 60.0
"""Seconds of a call's timeout at most: the server remembers appends for twice as long."""
_BYTES_PER_S_MIN: Final = 8 * 1024 * 1024
"""The rate by which large transfers get additional time."""


class RemoteLog:
    """See `LogAccess` for the contract of each method, and `interface.py` for its errors: those of a log in a
    directory.

    timeout_s: how long a call is retried, up to 60. Then BrokerUnavailable, or OutcomeUnknown for an append that may
    have been carried out. A repeat never appends twice, even if the server was killed and restarted in between. A
    forked child connects and appends as another producer. tls, token: as for producers.
    """

    def __init__(
        self,
        address: str,
        *,
        timeout_s: float = 15.0,
        session_s: float = SESSION_S,
        tls: TlsChoice = None,
        token: TokenChoice = None,
    ) -> None:
        if not address.startswith(UNIX):
            address = check_address("the address of a log", address)
        if not 0 < timeout_s <= _TIMEOUT_S_MAX:
            raise MisuseError(f"timeout_s={timeout_s} of a log: more than 0, and up to {_TIMEOUT_S_MAX:g} are allowed")
        self.address = address
        self._timeout_s = timeout_s
        self._session_s = session_s
        self._server = RemoteServer(address, tls=tls, token=token)
        self._renew()
        renew_in_children(self)

    def _renew(self) -> None:
        self._generation = 0  # the highest that was seen
        self._calls = _Numbers()
        self._members: set[RemoteMember] = set()

    def close(self) -> None:
        if self._server.closed.is_set():
            return
        for member in list(self._members):
            member.abandon()
        self._server.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask_server(self, method: Method[RequestT, ReplyT], request: RequestT) -> ReplyT:
        channel = self._server.channel
        return self._server.ask_until_answered(
            lambda timeout_s, _: channel.call(method, request, timeout_s=timeout_s), timeout_s=self._timeout_s
        )

    # ---- reading

    def describe(self) -> pb.DescribeLogReply:
        """Return the log's identity, and the state of its server."""
        return self._ask_server(MetaQ.describe, pb.DescribeLogRequest())

    def identity(self) -> LogIdentity:
        reply = self.describe()
        return LogIdentity(reply.log_id, reply.generation)

    def topics(self) -> dict[str, list[int]]:
        reply = self._ask_server(MetaQ.list_topics, pb.ListLogTopicsRequest())
        return {queue_set.topic: list(queue_set.queue) for queue_set in reply.topics}

    def queues_of(self, topic: str) -> list[int]:
        reply = self._ask_server(MetaQ.list_topics, pb.ListLogTopicsRequest(topic=topic))
        return [queue for queue_set in reply.topics for queue in queue_set.queue]

    def ranges(self, queues: Collection[LogQueue]) -> dict[LogQueue, QueueRange]:
        reply = self._ask_server(MetaQ.ranges, pb.RangesRequest(queues=sets_of_queues(queues)))
        return dict(zip(queues, map(QueueRange, reply.begin, reply.end), strict=True))

    def offsets_at(self, queues: Collection[LogQueue], at_us: int) -> dict[LogQueue, int]:
        request = pb.OffsetsAtRequest(queues=sets_of_queues(queues), at_us=at_us)
        reply = self._ask_server(MetaQ.offsets_at, request)
        return dict(zip(queues, reply.offset, strict=True))

    def fetch(
        self,
        wanted: Mapping[LogQueue, int],
        *,
        size_bytes_max: int = FETCH_SIZE_BYTES_MAX,
        wait_s: float = 0.0,
    ) -> list[Fetched]:
        request = pb.FetchRequest(wanted=wire_offsets(wanted), size_bytes_max=max(0, size_bytes_max))
        deadline = time.monotonic() + wait_s
        while True:
            left_s = max(0.0, deadline - time.monotonic())
            # Long waits are several requests, so that a connection which died unnoticed is found within one of them.
            this_s = min(left_s, _WAIT_S_MAX)
            request.wait_ms = round(this_s * 1000)
            try:
                found = self._server.ask_until_answered(
                    lambda timeout_s, _: self._fetched(request, list(wanted.items()), timeout_s),
                    timeout_s=this_s + self._timeout_s + size_bytes_max / _BYTES_PER_S_MIN,
                )
            except MisuseError:
                if wait_s and self._server.closed.is_set():
                    return []
                raise
            if found or time.monotonic() >= deadline:
                return found

    def _fetched(
        self, request: pb.FetchRequest, wanted: Sequence[tuple[LogQueue, int]], timeout_s: float
    ) -> list[Fetched]:
        found: dict[int, _FetchedSoFar] = {}
        replies = self._server.channel.replies_with_data(MetaQ.fetch, request, timeout_s=timeout_s)
        for reply, data in replies:
            begin = 0
            for part in reply.head.fetched:
                if part.at >= len(wanted):
                    raise ProtocolError(f"MetaQ server {self.address} sent frames of a queue that was not asked for")
                of_queue = found.get(part.at)
                if of_queue is None:
                    of_queue = found[part.at] = _FetchedSoFar(*wanted[part.at])
                if part.HasField("error"):
                    of_queue.error = error_of_log_error(part.error)
                else:
                    of_queue.add(data[begin : begin + part.size], goes_on=part.goes_on)
                    begin += part.size
        return [found[at].fetched() for at in sorted(found)]

    def find(self, topic: str, key: str, *, count_max: int = 100) -> list[ReceivedMessage]:
        request = pb.FindInLogRequest(topic=topic, key=key, count_max=count_max)
        reply = self._ask_server(MetaQ.find, request)
        return [message_of_found(topic, found) for found in reply.found]

    def find_id(self, topic: str, message_id: str) -> ReceivedMessage | None:
        request = pb.FindInLogRequest(topic=topic, id=message_id)
        while True:
            reply = self._ask_server(MetaQ.find, request)
            if reply.found:
                return message_of_found(topic, reply.found[0])
            if not reply.following:
                return None
            request = pb.FindInLogRequest(topic=topic, id=message_id, following=reply.following)

    def delayed(self, limit: int = 100) -> Delayed:
        request, found = pb.DelayedInLogRequest(limit=limit), Delayed({}, ())
        while True:
            reply = self._ask_server(MetaQ.delayed, request)
            found = found.plus(delayed_of(reply), limit)
            if not reply.following:
                return found
            request.following = reply.following

    # ---- appending

    def append(self, appends: Sequence[Append], acks: Acks | None = None) -> list[int]:
        batches = [batch_of_append(append) for append in appends]
        data = [append.payload.parts[0] for append in appends]
        channel = self._server.channel
        with self._calls.next() as (sequence, settled):
            head = pb.AppendHead(
                producer_id=self._calls.producer_id,
                sequence=sequence,
                settled=settled,
                batches=batches,
                acks=acks or "",
                generation=self._generation,
            )

            def attempt(timeout_s: float, is_repeat: bool) -> pb.AppendReply:
                head.is_repeat = is_repeat
                return channel.call(MetaQ.append, pb.AppendRequest(head=head), data=data, timeout_s=timeout_s)

            timeout_s = self._timeout_s + sum(map(len, data)) / _BYTES_PER_S_MIN
            reply = self._server.ask_until_answered(attempt, timeout_s=timeout_s, changes=True)
            # Sent with each append: a former leader that was away during a promotion refuses it instead of accepting
            # messages that would be lost.
            self._generation = max(self._generation, reply.generation)
            return list(reply.base_offset) or [_UNKNOWN] * len(appends)  # Acks.NONE waits for no offsets

    def recall(self, topic: str, number: int) -> None:
        self._ask_server(MetaQ.recall, pb.RecallInLogRequest(topic=topic, number=number))

    def settings_of(self, topic: str) -> TopicSettings:
        return settings_of(self._ask_server(MetaQ.show_topic, pb.LogTopicRequest(topic=topic)))

    def set_topic(self, topic: str, settings: TopicSettings) -> None:
        request = pb.SetLogTopicRequest(topic=topic, settings=wire_settings(settings))
        self._ask_server(MetaQ.set_topic, request)

    def flush(self) -> None:
        self._ask_server(MetaQ.flush, pb.FlushLogRequest())

    # ---- groups

    def join(
        self,
        group: str,
        topics: Collection[str],
        *,
        start: Start = Start.earliest(),
        strategy: str = "averaged",
        zone: str = "",
    ) -> RemoteMember:
        member = RemoteMember(
            self._server,
            group,
            tuple(topics),
            start=check_group_start(start, default=Start.earliest()),
            strategy=strategy,
            zone=zone,
            timeout_s=self._timeout_s,
            session_s=self._session_s,
            on_left=self._members.discard,
        )
        self._members.add(member)
        return member

    def groups(self) -> list[str]:
        return list(self._ask_server(MetaQGroups.list_groups, pb.ListLogGroupsRequest()).groups)

    def group(self, group: str) -> GroupState:
        reply = self._ask_server(MetaQGroups.show_group, pb.ShowLogGroupRequest(group=group))
        queues = (
            QueueState(
                LogQueue(queue.topic, queue.queue),
                queue.owner if queue.HasField("owner") else None,
                queue.offset if queue.HasField("offset") else None,
                QueueRange(queue.begin, queue.end),
            )
            for queue in reply.queues
        )
        return GroupState(group, tuple(map(member_of, reply.members)), tuple(queues), group_settings_of(reply.settings))

    def seek(self, group: str, offsets: Mapping[LogQueue, int]) -> None:
        self._ask_server(MetaQGroups.seek_group, pb.SeekLogGroupRequest(group=group, offsets=wire_offsets(offsets)))

    def alter_group(
        self,
        group: str,
        *,
        stopped: bool | None = None,
        concurrency: int | None = None,
        rate_per_s: float | None = None,
    ) -> LogGroupSettings:
        # What no log takes is refused before it is packed, which would raise errors of another kind.
        LogGroupSettings().altered(stopped=stopped, concurrency=concurrency, rate_per_s=rate_per_s)
        request = pb.AlterLogGroupRequest(group=group, concurrency=concurrency, rate_per_s=rate_per_s)
        if stopped is not None:
            request.stopped = stopped
        return group_settings_of(self._ask_server(MetaQGroups.alter_group, request))

    def delete_group(self, group: str) -> None:
        self._ask_server(MetaQGroups.delete_group, pb.DeleteLogGroupRequest(group=group))


class _Numbers:
    """Numbers the appends of one opened log, so that a server recognises repeats. Threads may share it."""

    def __init__(self) -> None:
        self.producer_id = os.urandom(ID_SIZE_BYTES)
        self._lock = threading.Lock()
        self._next = 1
        self._under_way: set[int] = set()

    @contextmanager
    def next(self) -> Iterator[tuple[int, int]]:
        """Yield the number of a call, which is under way until `with` ends, and the lowest one under way."""
        with self._lock:
            number = self._next
            self._next += 1
            self._under_way.add(number)
            # Answers below this number are never asked for again: the server may forget them.
            settled = min(self._under_way)
        try:
            yield number, settled
        finally:
            with self._lock:
                self._under_way.discard(number)


class _FetchedSoFar:
    """The result of a fetch in one queue so far. Frames are verified as they arrive, while the server reads on."""

    def __init__(self, queue: LogQueue, offset: int) -> None:
        self._queue = queue
        self._offset = offset
        self._batches: list[FrameBatch] = []
        self._parts: list[memoryview] = []
        self.error: TxmsgError | None = None

    def add(self, frames: memoryview, *, goes_on: bool) -> None:
        """Add the frames that follow; goes_on: they are a part of one."""
        self._parts.append(frames)
        if goes_on or self.error is not None:
            return
        # Only parts of a large frame are joined; frames that came whole stay on the bytes of their reply.
        whole = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        following = self._offset if self._batches else None
        batches, self.error = batches_of_frames(self._queue, self._offset, whole, following=following)
        self._batches += batches
        if batches:
            self._offset = batches[-1].end_offset

    def fetched(self) -> Fetched:
        """Return the result. An error is returned only if there are no batches before it."""
        if self._parts:
            self.add(memoryview(b""), goes_on=False)  # the rest of a frame did not come: it is damaged
        return Fetched(self._queue, tuple(self._batches), None if self._batches else self.error)
