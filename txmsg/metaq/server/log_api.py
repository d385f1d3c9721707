"""The calls of a log's clients, groups aside: requests become calls of the log, values become replies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence, Sized
from concurrent.futures import Executor
from contextvars import copy_context
from functools import partial
from importlib.metadata import version
from shutil import disk_usage
from typing import Final, TypeVar

from txmsg.errors import (
    BrokerUnavailable,
    CorruptLog,
    InvalidName,
    MessageTooLarge,
    MisuseError,
    NotLeader,
    OutcomeUnknown,
    ProtocolError,
    shown,
)
from txmsg.message import check_name
from txmsg.metaq.acks import Acks
from txmsg.metaq.copy.copies import Copies
from txmsg.metaq.finding import search_id
from txmsg.metaq.format.frame import FRAME_SIZE_BYTES_MAX
from txmsg.metaq.interface import OWN, Fetched, LogQueue
from txmsg.metaq.local import LocalLog
from txmsg.metaq.protocol import (
    ID_SIZE_BYTES,
    PIECE_SIZE_BYTES,
    acks_of,
    appends_of,
    offsets_of,
    queues_of_sets,
    settings_of,
    wire_delayed,
    wire_found,
    wire_offsets,
    wire_settings,
)
from txmsg.metaq.server.appender import AppendExecutor
from txmsg.metaq.server.fetched import FetchedReply, replies_of, wanted_after
from txmsg.metaq.server.placement import AppendCall
from txmsg.metaq.server.polls import WaitingPolls
from txmsg.metaq.server.producers import CallId
from txmsg.metaq.server.readers import ReaderThreads, swell_bytes
from txmsg.metaq.server.server_config import MetaQConfig
from txmsg.metaq.server.transfers import Transfer, Transfers
from txmsg.metaq.server.validation import check
from txmsg.metaq.store.topics import Flush
from txmsg.wire.access.permissions import DESCRIBE_CLUSTER, DESCRIBE_TOPIC
from txmsg.wire.caller import current_usage, may
from txmsg.wire.changes import change_of
from txmsg.wire.server_call import ServerCall
from txmsg.wire.tls import ServerTls
from txmsg.wire.v1 import metaq_pb2 as pb

T = TypeVar("T")

QUEUES_OF_REQUEST_MAX: Final = 65_536
FETCH_SIZE_BYTES_CEILING: Final = FRAME_SIZE_BYTES_MAX
APPEND_SIZE_BYTES_MAX: Final = FRAME_SIZE_BYTES_MAX + 16 * 1024 * 1024
"""Bytes of an append as received, and of its batches when they are unpacked."""
WAIT_S_MAX: Final = 60.0
FOUND_MAX: Final = 1000
FOUND_SIZE_BYTES_MAX: Final = 16 * 1024 * 1024
_CHECK_AT_ONCE_SIZE_BYTES = 64 * 1024
_CHECK_AT_ONCE_BATCHES = 16
_GROUP_LOG_LOOK_S = 1.0
"""Seconds between two checks of groups' logs: retries are appended by other processes, too."""


class LogApi:
    """The service MetaQ. readers: threads for reads, and for checks of large appends.

    recalling: for recalls, which wait for moves.
    """

    def __init__(  # noqa: PLR0917 - what a server is made of
        self,
        log: LocalLog,
        appender: AppendExecutor,
        polls: WaitingPolls,
        sessions: Sized,
        readers: ReaderThreads,
        recalling: Executor,
        config: MetaQConfig,
        stop: asyncio.Event,
        copies: Copies,
        *,
        tls: ServerTls | None,
    ) -> None:
        self._log = log
        self._copies = copies
        self._appender = appender
        self._polls = polls
        self._sessions = sessions
        self._readers = readers
        self._recalling = recalling
        self._config = config
        self._stop = stop
        self._tls = tls
        self.sending = Transfers(config.sending_size_bytes_max, config.send_timeout_s)

    async def _read(self, work: Callable[[], T]) -> T:
        return await self._readers.run(work)

    # ---- what there is

    async def describe(self, request: pb.DescribeLogRequest) -> pb.DescribeLogReply:
        if not may(DESCRIBE_CLUSTER, ""):
            identity = await self._read(self._log.identity)
            return pb.DescribeLogReply(
                log_id=identity.log_id,
                generation=identity.generation,
                release=version("txmsg"),
                # Not its text, which names a directory.
                failure="the server accepts no appends: its log says why" if self._appender.failure else "",
                retention_s=self._log.retention_s,
            )
        identity, size, disk = await self._read(
            lambda: (self._log.identity(), self._log.size(), disk_usage(self._log.root))
        )
        return pb.DescribeLogReply(
            disk_free_ratio=disk.free / disk.total,
            certificate_remaining_s=None if self._tls is None else self._tls.remaining_s(),
            log_id=identity.log_id,
            generation=identity.generation,
            release=version("txmsg"),
            failure=self._appender.failure,
            waiting=self._polls.count,
            sessions=len(self._sessions),
            appending_bytes=self._appender.size_bytes,
            size_bytes=size.size_bytes,
            retention_s=self._log.retention_s,
            follows=self._config.follow,
            copies=[
                pb.LogCopy(
                    name=copy.name,
                    position=copy.position,
                    behind_bytes=max(0, self._log.writer.synced - copy.position),
                    silent_s=silent_s,
                )
                for copy, silent_s in self._copies.all()
            ],
        )

    async def list_topics(self, request: pb.ListLogTopicsRequest) -> pb.ListLogTopicsReply:
        if request.topic:
            topic = check_name("topic", request.topic)
            topics = {topic: await self._read(lambda: self._log.queues_of(topic))}
        else:
            topics = await self._read(self._log.topics)
        return pb.ListLogTopicsReply(
            topics=[
                pb.QueueSet(topic=topic, queue=numbers)
                for topic, numbers in topics.items()
                if may(DESCRIBE_TOPIC, topic)
            ]
        )

    async def show_topic(self, request: pb.LogTopicRequest) -> pb.LogTopicSettings:
        topic = check_name("topic", request.topic)
        return wire_settings(await self._read(lambda: self._log.settings_of(topic)))

    async def set_topic(self, request: pb.SetLogTopicRequest) -> pb.SetLogTopicReply:
        topic, settings = _not_own(check_name("topic", request.topic)), settings_of(request.settings)
        before = await self._read(lambda: self._log.settings_of(topic))
        await self._read(lambda: self._log.set_topic(topic, settings))
        change_of("log_topic.alter", topic, before=before.values(), after=settings.values()).log_change()
        return pb.SetLogTopicReply()

    async def ranges(self, request: pb.RangesRequest) -> pb.RangesReply:
        queues = checked(queues_of_sets(request.queues))
        ranges = await self._read(lambda: self._log.ranges(queues))
        begins, ends = zip(*(ranges[queue] for queue in queues), strict=True) if queues else ((), ())
        return pb.RangesReply(begin=begins, end=ends)

    async def offsets_at(self, request: pb.OffsetsAtRequest) -> pb.OffsetsAtReply:
        queues = checked(queues_of_sets(request.queues))
        offsets = await self._read(lambda: self._log.offsets_at(queues, request.at_us))
        return pb.OffsetsAtReply(offset=[offsets[queue] for queue in queues])

    async def find(self, request: pb.FindInLogRequest) -> pb.FindInLogReply:
        check_name("topic", request.topic)
        if request.id:
            return await self._find_id(request)
        count_max = min(request.count_max, FOUND_MAX)
        found = await self._readers.unpack(lambda: self._log.find(request.topic, request.key, count_max=count_max + 1))
        reply, size_bytes = pb.FindInLogReply(more=len(found) > count_max), 0
        for message in found[:count_max]:
            size_bytes += len(message.body)
            if reply.found and size_bytes > FOUND_SIZE_BYTES_MAX:
                reply.more = True
                break
            reply.found.append(wire_found(message))
        return reply

    async def _find_id(self, request: pb.FindInLogRequest) -> pb.FindInLogReply:
        start = {queue: offset or 0 for queue, offset in offsets_of(request.following).items()}
        checked(list(start))
        if any(queue.topic != request.topic for queue in start):
            raise ProtocolError(f"a search in topic {shown(request.topic)} continues in another topic")
        search = await self._readers.unpack(lambda: search_id(self._log, request.topic, request.id, start))
        found = () if search.found is None else (wire_found(search.found),)
        return pb.FindInLogReply(found=found, following=wire_offsets(search.following))

    async def delayed(self, request: pb.DelayedInLogRequest) -> pb.DelayedInLogReply:
        look = partial(
            self._log.delayed_from, request.following, min(request.limit, FOUND_MAX), partial(may, DESCRIBE_TOPIC)
        )
        # In the context of the call, by which it is known who asks.
        return wire_delayed(*await self._read(partial(copy_context().run, look)))

    # ---- fetching

    async def fetch(self, request: pb.FetchRequest, call: ServerCall[pb.FetchRequest, pb.FetchReply]) -> None:
        """Fetch messages: wait on the loop, read on a thread.

        The next piece is read only when the one before is leaving.
        """
        wanted = {queue: -1 if offset is None else offset for queue, offset in offsets_of(request.wanted).items()}
        checked(list(wanted))
        places = {queue: place for place, queue in enumerate(wanted)}
        left_bytes = min(request.size_bytes_max, FETCH_SIZE_BYTES_CEILING)
        found = await self._found(wanted, min(left_bytes, PIECE_SIZE_BYTES), request.wait_ms / 1000)
        goes_on = left_bytes > PIECE_SIZE_BYTES
        with self.sending.begun(call.connection) as transfer:
            while found:
                # The bytes that were verified are the bytes that are sent: no copy, no second read, but for parts of
                # large frames (decision 0060).
                replies, following = replies_of(found, places), wanted_after(wanted, found)
                found = []  # a large frame is not kept while its parts are sent
                held_bytes = min(PIECE_SIZE_BYTES, sum(reply.size_bytes for reply in replies))
                if not self.sending.hold_now(transfer, held_bytes):
                    has_frames = any(reply.frames for reply in replies)
                    if has_frames:
                        replies = []  # nothing is kept while others have the room
                    await self.sending.hold_bytes(transfer, held_bytes)
                    if has_frames:
                        found = await self._read_from(wanted, min(left_bytes, held_bytes))
                        continue  # the transfer already holds as much
                left_bytes -= sum(reply.size_bytes for reply in replies)
                wanted = following
                await self._send_replies(replies, call, transfer)
                found = await self._read_from(wanted, left_bytes) if goes_on and left_bytes > 0 else []
                if sum(fetched.size_bytes for fetched in found) > left_bytes:
                    break  # a batch that is too large: the next fetch begins with it

    async def _read_from(self, wanted: dict[LogQueue, int], left_bytes: int) -> list[Fetched]:
        return await self._read(lambda: self._log.fetch(wanted, size_bytes_max=min(left_bytes, PIECE_SIZE_BYTES)))

    async def _send_replies(
        self, replies: Sequence[FetchedReply], call: ServerCall[pb.FetchRequest, pb.FetchReply], transfer: Transfer
    ) -> None:
        try:
            for reply in replies:
                data = reply.frames
                if (part := reply.part) is not None:
                    data = [await self._read(partial(self._log.raw, part.topic, part.position, part.size_bytes))]
                async with transfer.step():
                    await call.send_reply(pb.FetchReply(head=reply.head), data)
                transfer.moved_bytes += reply.size_bytes
        except CorruptLog as exc:
            raise BrokerUnavailable(f"the data was deleted while it was being sent: fetch again ({exc})") from exc
        except TimeoutError:
            if transfer.is_ended:
                raise OutcomeUnknown("a fetch was read slowly while others needed its memory: fetch again") from None
            raise OutcomeUnknown(
                f"a fetch was read too slowly: {self._config.send_timeout_s:g} s for a piece and a second for each MiB "
                "are allowed; fetch again"
            ) from None

    async def _found(self, wanted: dict[LogQueue, int], size_bytes_max: int, wait_s: float) -> list[Fetched]:
        def fetch() -> list[Fetched]:
            return self._log.fetch(wanted, size_bytes_max=size_bytes_max)

        found = await self._read(fetch)
        if found or not wait_s:
            return found
        look_s = _GROUP_LOG_LOOK_S if any(queue.topic.startswith("%") for queue in wanted) else WAIT_S_MAX
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(wait_s, WAIT_S_MAX)
        with self._polls.watching(wanted) as grown:
            found = await self._read(fetch)  # something may have come before it watched
            while not found and (left_s := deadline - loop.time()) > 0:
                if self._stop.is_set():
                    raise BrokerUnavailable("this MetaQ server is stopping: ask again when it is back")
                try:
                    async with asyncio.timeout(min(left_s, look_s)):
                        await grown.wait()
                except TimeoutError:
                    if left_s <= look_s:
                        break
                grown.clear()
                found = await self._read(fetch)
        return found

    # ---- appending

    async def append(self, request: pb.AppendRequest, data: memoryview) -> pb.AppendReply:
        head = request.head
        if len(head.producer_id) != ID_SIZE_BYTES or not 1 <= head.settled <= head.sequence:
            raise ProtocolError("an append names its producer by 16 bytes, and numbers its calls 1, 2, 3, ...")
        raw_size_bytes = sum(batch.raw_size for batch in head.batches)
        if raw_size_bytes > APPEND_SIZE_BYTES_MAX:
            raise MessageTooLarge(
                f"an append of {raw_size_bytes} bytes when it is unpacked: at most {APPEND_SIZE_BYTES_MAX} are "
                "allowed; nothing was appended, send several"
            )
        # Small appends are checked on the loop: a batch takes 6 us (decision 0060), less than a turn through a thread.
        if max(len(data), raw_size_bytes) <= _CHECK_AT_ONCE_SIZE_BYTES and len(head.batches) <= _CHECK_AT_ONCE_BATCHES:
            call = self._checked_call(head, data)
        elif swell_size_bytes := swell_bytes(len(data), raw_size_bytes):
            await self._readers.pay(swell_size_bytes)
            call = await self._readers.unpack(lambda: self._checked_call(head, data))
        else:
            call = await self._read(lambda: self._checked_call(head, data))
        generation = self._log.writer.identity.generation
        # Its producer has seen a later generation, so this log was superseded and does not know it yet.
        if head.generation > generation:
            raise NotLeader(
                f"the log here has generation {generation}, and its producer has appended to {head.generation}: a copy "
                "was promoted; append to that one"
            )
        if not call.appends:
            return pb.AppendReply(generation=generation)
        # Before anything is appended: with too few copies the outcome is certain, and a repeat is safe (decision 0075).
        waits_for_copies = self._waits_for_copies(call)
        if (usage := current_usage()) is not None:
            await usage.messages(sum(batch.count for batch in head.batches))
        answer = self._appender.begin_append(call)
        if call.acks is Acks.NONE:
            return pb.AppendReply(generation=generation)
        # Shielded: the append goes to its end without its caller, and a repeat gets its answer.
        base_offset = await asyncio.shield(answer)
        if waits_for_copies:
            await self._require_copies(is_asked_for=call.acks is Acks.COPIES)
        return pb.AppendReply(base_offset=base_offset, generation=generation)

    def _waits_for_copies(self, call: AppendCall) -> bool:
        """Return True if an append waits for copies.

        Raises BrokerUnavailable if there are too few, MisuseError where none are required: before anything is appended.
        """
        copies = self._copies
        if call.acks is Acks.COPIES:
            if not copies.required:
                raise MisuseError(
                    "acks=copies of an append to a log that requires no copies: have its server require some, with "
                    "--copies-required, or ask for disk; nothing was appended"
                )
        elif not copies.required or call.acks is not None or self._is_unsynced(call):
            return False
        if (in_touch := copies.in_touch()) >= copies.required:
            return True
        if call.acks is None and copies.goes_on:
            return False
        raise BrokerUnavailable(
            f"{in_touch} of {copies.required} copies of the log are in touch: nothing was appended; start those that "
            "are away, with `txmsg metaq follow`, and try again"
        )

    def _is_unsynced(self, call: AppendCall) -> bool:
        """Return True if the caller does not wait for the disk: such a call does not wait for copies."""
        return call.is_of_group or all(
            self._log.settings_of(append.topic).flush is Flush.TIMED for append in call.appends
        )

    async def _require_copies(self, *, is_asked_for: bool) -> None:
        """Return when everything on disk here is on that of enough copies. Raises OutcomeUnknown after too long."""
        copies = self._copies
        if await copies.reached(self._log.writer.synced) or (copies.goes_on and not is_asked_for):
            return
        raise OutcomeUnknown(
            f"an append is on the disk of the log, but within {copies.timeout_s:g} s not on that of {copies.required} "
            "copies: a repeat of the call waits for them again"
        )

    def _checked_call(self, head: pb.AppendHead, data: memoryview) -> AppendCall:
        appends = tuple(appends_of(head.batches, data))
        for append in appends:
            _not_own(append.topic)
            check(append)
        appends = tuple(append if append.due_at_us is None else self._log.writer.waiting(append) for append in appends)
        call_id = CallId(head.producer_id, head.sequence)
        return AppendCall(call_id, head.settled, appends, head.is_repeat, acks_of(head.acks))

    async def recall(self, request: pb.RecallInLogRequest) -> pb.RecallInLogReply:
        topic = check_name("topic", request.topic)
        recall = partial(self._log.recall, topic, request.number)
        await asyncio.get_running_loop().run_in_executor(self._recalling, recall)
        if self._copies.required:
            await self._require_copies(is_asked_for=False)
        return pb.RecallInLogReply()

    async def flush(self, request: pb.FlushLogRequest) -> pb.FlushLogReply:
        await self._read(self._log.flush)
        return pb.FlushLogReply()


def checked(queues: Sequence[LogQueue]) -> Sequence[LogQueue]:
    """Return queues whose names were checked, because names become paths. Raises InvalidName."""
    if len(queues) > QUEUES_OF_REQUEST_MAX:
        raise ProtocolError(f"a request names {len(queues)} queues: at most {QUEUES_OF_REQUEST_MAX} are allowed")
    for topic in {queue.topic for queue in queues}:
        check_name("topic", topic)
    return queues


def _not_own(topic: str) -> str:
    if topic in OWN:
        raise InvalidName(f"topic {topic} is the log's own: nothing was changed")
    return topic
