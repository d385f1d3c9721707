"""What a log offers to clients, groups aside: requests become calls of the log, values become replies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Sized
from concurrent.futures import Executor
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from itertools import groupby
from typing import Final, NamedTuple, TypeVar

from google.protobuf.message import DecodeError

from txmsg.errors import (
    BrokerUnavailable,
    CorruptLog,
    InvalidName,
    MessageTooLarge,
    OutcomeUnknown,
    Overloaded,
    ProtocolError,
    TxmsgError,
)
from txmsg.message import check_name
from txmsg.metaq.access import NOTES, Fetched, LogQueue
from txmsg.metaq.format.frame import FRAME_SIZE_BYTES_MAX
from txmsg.metaq.local import LocalLog
from txmsg.metaq.protocol import (
    ID_SIZE_BYTES,
    PIECE_SIZE_BYTES,
    append_of_batch,
    log_error_of,
    offsets_of,
    queues_of_sets,
    settings_of,
    wire_found,
    wire_settings,
)
from txmsg.metaq.server.appender import Appender
from txmsg.metaq.server.config import MetaQConfig
from txmsg.metaq.server.placement import Call
from txmsg.metaq.server.producers import CallId
from txmsg.metaq.server.transfers import Transfers
from txmsg.metaq.server.validation import check
from txmsg.wire.server import ServerCall
from txmsg.wire.v1 import metaq_pb2 as pb

T = TypeVar("T")

QUEUES_OF_REQUEST_MAX: Final = 65_536
FETCH_SIZE_BYTES_CEILING: Final = FRAME_SIZE_BYTES_MAX
WAIT_S_MAX: Final = 60.0
FOUND_MAX: Final = 1000
FOUND_SIZE_BYTES_MAX: Final = 16 * 1024 * 1024
_APPEND_SIZE_BYTES_CEILING = FRAME_SIZE_BYTES_MAX + 16 * 1024 * 1024
_CHECK_AT_ONCE_SIZE_BYTES = 64 * 1024
_GROUP_LOG_LOOK_S = 1.0
"""Retries are appended by other processes, too: those who wait for them look as often."""


class LogApi:
    """The service MetaQ. `readers`: threads that read, and check what is large."""

    def __init__(  # noqa: PLR0917 - what a server is made of
        self,
        log: LocalLog,
        appender: Appender,
        polls: Polls,
        sessions: Sized,
        readers: Executor,
        config: MetaQConfig,
        stop: asyncio.Event,
    ) -> None:
        self._log = log
        self._appender = appender
        self._polls = polls
        self._sessions = sessions
        self._readers = readers
        self._config = config
        self._stop = stop
        self.sending = Transfers(config.sending_size_bytes_max, config.send_timeout_s)
        self.arriving = Transfers(config.arriving_size_bytes_max, config.send_timeout_s)

    async def _read(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._readers, work)

    # ---- what there is

    async def describe(self, request: pb.DescribeLogRequest) -> pb.DescribeLogReply:
        identity = await self._read(self._log.identity)
        return pb.DescribeLogReply(
            log_id=identity.log_id,
            generation=identity.generation,
            release=version("txmsg"),
            failure=self._appender.failure,
            waiting=self._polls.count,
            sessions=len(self._sessions),
            appending_bytes=self._appender.size_bytes,
        )

    async def list_topics(self, request: pb.ListLogTopicsRequest) -> pb.ListLogTopicsReply:
        if request.topic:
            topic = check_name("topic", request.topic)
            topics = {topic: await self._read(lambda: self._log.queues_of(topic))}
        else:
            topics = await self._read(self._log.topics)
        return pb.ListLogTopicsReply(
            topics=[pb.QueueSet(topic=topic, queue=numbers) for topic, numbers in topics.items()]
        )

    async def show_topic(self, request: pb.LogTopicRequest) -> pb.LogTopicSettings:
        topic = check_name("topic", request.topic)
        return wire_settings(await self._read(lambda: self._log.settings_of(topic)))

    async def set_topic(self, request: pb.SetLogTopicRequest) -> pb.SetLogTopicReply:
        topic, settings = _not_own(check_name("topic", request.topic)), settings_of(request.settings)
        await self._read(lambda: self._log.set_topic(topic, settings))
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
        count_max = min(request.count_max, FOUND_MAX)
        found = await self._read(lambda: self._log.find(request.topic, request.key, count_max=count_max + 1))
        reply, size_bytes = pb.FindInLogReply(more=len(found) > count_max), 0
        for message in found[:count_max]:
            size_bytes += len(message.body)
            if reply.found and size_bytes > FOUND_SIZE_BYTES_MAX:
                reply.more = True
                break
            reply.found.append(wire_found(message))
        return reply

    # ---- fetching

    async def fetch(self, request: pb.FetchRequest, call: ServerCall[pb.FetchRequest, pb.FetchReply]) -> None:
        """Waits on the loop, reads on a thread, and reads a piece again only when the one before has left."""
        wanted = {queue: -1 if offset is None else offset for queue, offset in offsets_of(request.wanted).items()}
        checked(list(wanted))
        found = await self._found(wanted, min(request.size_bytes_max, FETCH_SIZE_BYTES_CEILING), request.wait_ms / 1000)
        pieces = _pieces(found, {queue: place for place, queue in enumerate(wanted)})
        del found  # what was read has been checked: it is read again piece by piece, as slowly as its reader takes it
        with self.sending.begun(call.connection, sum(piece.size_bytes for piece in pieces)) as transfer:
            try:
                if pieces:
                    await self.sending.hold(transfer, max(piece.size_bytes for piece in pieces))
                for piece in pieces:
                    reply = await self._read(partial(self._reply_of, piece))
                    async with transfer.step():
                        await call.send(reply)
                    transfer.moved_bytes += piece.size_bytes
            except TimeoutError:
                if transfer.is_ended:
                    raise OutcomeUnknown(
                        "a fetch was read slowly while others needed its memory: fetch again"
                    ) from None
                raise OutcomeUnknown(
                    f"a fetch was read too slowly: {self._config.send_timeout_s:g} s for a piece and a second for "
                    "each MiB are allowed; fetch again"
                ) from None

    def _reply_of(self, piece: _Piece) -> pb.FetchReply:
        reply = pb.FetchReply()
        try:
            for at, spans in groupby(piece.spans, key=lambda span: span.at):
                frames: list[memoryview] = []
                for span in spans:
                    if span.error is None:
                        frames.append(self._log.raw(span.topic, span.position, span.size_bytes))
                    else:
                        reply.fetched.add(at=at, error=log_error_of(span.error))
                if frames:
                    reply.fetched.add(at=at, frames=b"".join(frames))
        except CorruptLog as exc:
            raise BrokerUnavailable(f"the data was deleted while it was being sent: fetch again ({exc})") from exc
        return reply

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

    async def append(self, request: pb.AppendRequest) -> pb.AppendReply:
        return await self._append(request)

    async def append_large(self, call: ServerCall[pb.AppendPiece, pb.AppendReply]) -> pb.AppendReply:
        first = await anext(call)  # it came with the call
        if first.size > _APPEND_SIZE_BYTES_CEILING:
            raise MessageTooLarge(
                f"{first.size} bytes in one append: at most {_APPEND_SIZE_BYTES_CEILING} fit; send several"
            )
        with self.arriving.begun(call.connection, first.size) as transfer:
            pieces: list[bytes] = []
            piece: pb.AppendPiece | None = first
            try:
                while piece is not None and transfer.moved_bytes <= first.size:
                    self.arriving.hold_now(transfer, len(piece.data))
                    pieces.append(piece.data)
                    transfer.moved_bytes += len(piece.data)
                    async with transfer.step():
                        piece = await anext(call, None)
            except TimeoutError:
                raise self._too_slow(is_ended=transfer.is_ended) from None
            if transfer.moved_bytes != first.size:
                raise ProtocolError(f"an append of {first.size} bytes came with {transfer.moved_bytes}")
            request = await self._read(lambda: _joined(pieces))
        return await self._append(request)

    def _too_slow(self, *, is_ended: bool) -> TxmsgError:
        if is_ended:
            return Overloaded(
                "a large append arrived slowly while others needed its memory: nothing was appended; try again"
            )
        return ProtocolError(
            f"an append did not come within {self._config.send_timeout_s:g} s for a piece, and a second for each MiB: "
            "nothing was appended"
        )

    async def flush(self, request: pb.FlushLogRequest) -> pb.FlushLogReply:
        await self._read(self._log.flush)
        return pb.FlushLogReply()

    async def _append(self, request: pb.AppendRequest) -> pb.AppendReply:
        if len(request.producer_id) != ID_SIZE_BYTES or not 1 <= request.settled <= request.sequence:
            raise ProtocolError("an append names its producer by 16 bytes, and numbers its calls 1, 2, 3, ...")
        if not request.batches:
            return pb.AppendReply()
        call = Call(
            CallId(request.producer_id, request.sequence),
            request.settled,
            tuple(append_of_batch(batch) for batch in request.batches),
            request.is_repeat,
        )

        def check_all() -> None:
            for append in call.appends:
                _not_own(append.topic)
                check(append)

        if sum(append.payload.raw_size_bytes for append in call.appends) <= _CHECK_AT_ONCE_SIZE_BYTES:
            check_all()
        else:
            await self._read(check_all)
        return pb.AppendReply(base_offset=await self._appender.append(call))


def checked(queues: Sequence[LogQueue]) -> Sequence[LogQueue]:
    """Names become paths: none goes on that is not a name."""
    if len(queues) > QUEUES_OF_REQUEST_MAX:
        raise ProtocolError(f"a request names {len(queues)} queues: at most {QUEUES_OF_REQUEST_MAX} are allowed")
    for topic in {queue.topic for queue in queues}:
        check_name("topic", topic)
    return queues


def _not_own(topic: str) -> str:
    if topic == NOTES:
        raise InvalidName(f"topic {NOTES} is the server's own: nothing was changed")
    return topic


def _joined(pieces: list[bytes]) -> pb.AppendRequest:
    data = b"".join(pieces)
    pieces.clear()
    try:
        return pb.AppendRequest.FromString(data)
    except DecodeError as exc:
        raise ProtocolError(f"a request of {len(data)} bytes cannot be read: {exc}") from exc


class _Span(NamedTuple):
    """Frames of a queue that follow each other in the log, or a part of one, or why there are none."""

    at: int
    topic: str
    position: int = 0
    size_bytes: int = 0
    error: TxmsgError | None = None


class _Piece:
    """What goes in one reply."""

    def __init__(self) -> None:
        self.spans: list[_Span] = []
        self.size_bytes = 0

    def add(self, span: _Span) -> None:
        self.size_bytes += span.size_bytes
        last = self.spans[-1] if self.spans else None
        if last and not span.error and (last.at, last.position + last.size_bytes) == (span.at, span.position):
            self.spans[-1] = last._replace(size_bytes=last.size_bytes + span.size_bytes)
        else:
            self.spans.append(span)


def _pieces(found: Sequence[Fetched], places: dict[LogQueue, int]) -> list[_Piece]:
    """Where the frames stand that are to be sent, in pieces. They are read again when their turn has come."""
    pieces = [_Piece()]
    for fetched in found:
        at, topic = places[fetched.queue], fetched.queue.topic
        for header in (batch.header for batch in fetched.batches):
            position = header.position
            while position < header.end:
                if pieces[-1].size_bytes >= PIECE_SIZE_BYTES:
                    pieces.append(_Piece())
                size = min(header.end - position, PIECE_SIZE_BYTES - pieces[-1].size_bytes)
                pieces[-1].add(_Span(at, topic, position, size))
                position += size
        if fetched.error is not None:
            pieces[-1].add(_Span(at, topic, error=fetched.error))
    return [piece for piece in pieces if piece.spans]


class Polls:
    """Long polls: who waits for which queue. Belongs to one loop.

    A wait costs an entry in a table, no thread and no look at the log.
    """

    def __init__(self) -> None:
        self.count = 0
        """Fetches that wait."""
        self._waiting: dict[LogQueue, set[asyncio.Event]] = {}

    @contextmanager
    def watching(self, queues: Collection[LogQueue]) -> Iterator[asyncio.Event]:
        """An event that is set whenever one of these queues has got something. The caller clears it before it looks."""
        grown = asyncio.Event()
        for queue in queues:
            self._waiting.setdefault(queue, set()).add(grown)
        self.count += 1
        try:
            yield grown
        finally:
            self.count -= 1
            for queue in queues:
                others = self._waiting[queue]
                others.discard(grown)
                if not others:
                    del self._waiting[queue]

    def wake(self, queues: Iterable[LogQueue]) -> None:
        """These queues have got something."""
        for queue in queues:
            for grown in self._waiting.get(queue, ()):
                grown.set()

    def wake_all(self) -> None:
        """Wakes all fetches that wait, as when the server stops."""
        self.wake(list(self._waiting))
