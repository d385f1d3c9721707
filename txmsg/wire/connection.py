"""One connection of the protocol, the part that both sides share: frames in and out, greetings, pings, and fair
writing.

Small messages are written at once, in the order in which they were sent. A message larger than a frame is written part
by part as the other side reads it, and messages of several calls take turns. Knows no methods. Belongs to one loop.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from contextlib import suppress
from importlib.metadata import version
from typing import Final, cast

from google.protobuf.message import DecodeError

from txmsg.errors import ProtocolError, printable
from txmsg.runtime.forks import renew_in_children
from txmsg.runtime.logs import EventLog
from txmsg.wire.frames import (
    LAST,
    MORE,
    PART_SIZE_BYTES,
    PREFACE,
    Buffer,
    FrameReader,
    OutgoingMessage,
    WireFrame,
    WireFrameKind,
    frame_of,
    header_of,
)
from txmsg.wire.tls import TlsError, TlsStream
from txmsg.wire.v1.wire_pb2 import Greeting

VERSION: Final = 1
_WRITE_HIGH_BYTES: Final = 8 * PART_SIZE_BYTES
"""Bytes of large messages that are given to a connection and its kernel ahead: fewer cost throughput, and with more a
small message waits longer behind them."""
_PARTIAL_MAX: Final = 1000
_PARTIAL_BYTES_MAX: Final = 320 * 1024 * 1024
"""Size of all messages that have arrived in part, together."""
_JOINED_BYTES_MAX: Final = 16 * 1024
"""A message up to this size is copied to be sent with others in one system call; a larger one is not copied."""
_KEEPALIVE_IDLE_S: Final = 20
_KEEPALIVE_PROBES: Final = 3

_release = version("txmsg")
_log = EventLog(__name__)


def greeting(*, blocking: bool = False, token: str = "") -> bytes:
    """Return the bytes that each side sends first; a client's contain its token."""
    hello = Greeting(versions=[VERSION], release=_release, blocking=blocking, token=token)
    return PREFACE + frame_of(WireFrameKind.HELLO, payload=hello.SerializeToString())


def read_greeting(frame: WireFrame) -> Greeting:
    """Return the greeting of the other side. Raises ProtocolError if the frame is not one, or is of another version."""
    if frame.kind != WireFrameKind.HELLO:
        raise ProtocolError(f"its first frame is of kind {frame.kind}, not a greeting")
    try:
        hello = Greeting.FromString(frame.payload)
    except DecodeError as exc:
        raise ProtocolError(f"its greeting of {len(frame.payload)} bytes cannot be read") from exc
    if VERSION not in hello.versions:
        raise ProtocolError(
            f"it speaks versions {list(hello.versions)[:8]} of the protocol, and txmsg {_release} version {VERSION}"
        )
    return hello


def set_options(sock: socket.socket) -> None:
    """Set the socket's options: keepalive detects a silent peer's dead machine, and the kernel buffers little unsent
    data."""
    if sock.family == socket.AF_UNIX:
        return
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # else a small message waits behind megabytes of a large one
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _WRITE_HIGH_BYTES)
    # Blocking clients read only while they wait, so they cannot answer pings; the kernel finds their dead peers (0054).
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_IDLE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_IDLE_S // _KEEPALIVE_PROBES)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _KEEPALIVE_PROBES)


class Partial:
    """A message that has arrived in part; a refused one is not kept."""

    def __init__(self, kind: int, call: int, allowed_bytes: int, due_at: float) -> None:
        self.kind = kind
        self.call = call
        self.allowed_bytes = allowed_bytes
        self.due_at = due_at
        """Loop time at which more of it must have come."""
        self.is_refused = False
        self.kept = bytearray()


class Traffic:
    """Counts of bytes, of all connections that share it."""

    __slots__ = ("received_bytes", "sent_bytes")

    def __init__(self) -> None:
        self.received_bytes = 0
        self.sent_bytes = 0


class WireConnection(asyncio.Protocol):
    """A connection of the protocol.

    Subclasses handle what arrives: `greeted`, `take_message`, `lost` and the other methods that stand first here.
    """

    def __init__(self, traffic: Traffic | None = None, *, tls: TlsStream | None = None, token: str = "") -> None:
        self.traffic = traffic or Traffic()
        self._tls = tls
        self._token = token
        self.loop = asyncio.get_running_loop()
        self.peer: Greeting | None = None
        """The greeting of the other side, once it has come."""
        self.peer_name = "a local process"
        self.is_lost = False
        self.heard_at = self.full_since = self.loop.time()
        """Loop times: of the last bytes received; and since when the other side reads nothing, if `is_full`."""
        self.is_full = False
        self._full_bytes = 0
        self.waiting_bytes_max = self.backlog_bytes_max = float("inf")
        """Bytes of large messages that have not been sent, and of data that the other side does not read: above,
        nothing is read."""
        self.arrival_s = self.arrival_bytes_per_s = float("inf")
        """Seconds that a message may be behind this rate."""
        self._reader = FrameReader()
        self.partial: dict[tuple[int, int], Partial] = {}
        """Messages that have arrived in part, by kind and call."""
        self._partial_bytes = 0
        self._out: list[Buffer] = []
        self._will_flush = False
        self._lanes: dict[int, deque[OutgoingMessage]] = {}
        self._drained: list[asyncio.Future[None]] = []
        self._is_held_back = self._is_finished = False

    def _renew(self) -> None:
        """Close a forked child's copy of the socket, and nothing else: so the other side sees the parent end."""
        if not self.is_lost and not self._transport.is_closing():
            self.is_lost = True  # else a child of the child would close a file of its parent's that has the number
            with suppress(OSError):  # whatever else was told of the fork has closed it
                os.close(self._transport.get_extra_info("socket").fileno())

    # ---- what subclasses say

    def greeted(self) -> None:
        """Handle the greeting of the other side."""

    def take_message(self, kind: int, flags: int, call: int, message: Buffer) -> None:
        """Handle a message. A ProtocolError ends the connection."""
        raise NotImplementedError

    def allowed_bytes(self, kind: int, call: int, first: bytes) -> int:
        """Return the maximum size of a message whose first part this is; 0 if the message is not wanted."""
        raise NotImplementedError

    def too_large(self, kind: int, call: int, allowed_bytes: int) -> None:
        """Handle a message that has exceeded its maximum, and is not kept."""
        raise NotImplementedError

    def arriving(self, size_bytes: int) -> None:
        """Count bytes of messages that have arrived in part; a negative number when they are complete or dropped."""

    def lost(self, reason: str) -> None:
        """Handle the end of the connection."""
        raise NotImplementedError

    # ---- writing

    def send_frames(self, kind: int, flags: int, call: int, *pieces: Buffer) -> None:
        """Send a message, given in pieces: soon, or as the other side reads. Does nothing once the connection is lost.

        The pieces must not change: large ones are not copied.
        """
        if self.is_lost or self._is_finished:
            return
        size_bytes = sum(map(len, pieces))
        # Messages of one call keep their order; and a stream's wait where it can wait for them.
        must_wait = call in self._lanes or (self.is_full and kind == WireFrameKind.PUSH)
        if must_wait or size_bytes > PART_SIZE_BYTES:
            self._lanes.setdefault(call, deque()).append(OutgoingMessage(kind, flags, call, pieces))
            self._fill()
            self._set_reading()
        # Written at once and not copied. What was joined before it leaves first, so that messages keep their order.
        elif size_bytes > _JOINED_BYTES_MAX:
            self._flush()
            self._write(header_of(kind, flags, call, size_bytes), *pieces)
            if self.is_full:
                self._set_reading()
        else:
            self._out.append(header_of(kind, flags, call, size_bytes))
            self._out += pieces
            if not self._will_flush:
                self._will_flush = True
                # Not written here: messages of callers that are ready in the same turn of the loop leave in one system
                # call.
                self.loop.call_soon(self._flush)

    def drop(self, call: int) -> bool:
        """Forget the unsent and the incomplete messages of this call. Returns True if one was being sent."""
        was_sent = self._lanes.pop(call, None) is not None
        if was_sent:
            self._tell_drained()
        for kind in WireFrameKind:
            if (partial := self.partial.pop((kind, call), None)) is not None:
                self._forget_kept(partial)
        return was_sent

    async def drained(self, call: int) -> None:
        """Return when the messages sent for this call are on their way, or the connection is lost."""
        while call in self._lanes:
            await self._progress()

    async def emptied(self) -> None:
        """Return when the other side reads again, or the connection is lost."""
        while self.is_full and not self.is_lost:
            await self._progress()

    async def _progress(self) -> None:
        drained = self.loop.create_future()
        self._drained.append(drained)
        await drained

    def close(self) -> None:
        """Write the small messages that wait, then close."""
        self._flush()
        self._transport.close()

    def finish(self) -> None:
        """Write the small messages that wait, and end only our direction: closing could destroy data that the other
        side has not read yet."""
        self._flush()
        if not self._is_finished and not self._transport.is_closing():
            self._is_finished = True
            self._lanes.clear()  # the rest of what is large: nothing can be written behind the end
            self._tell_drained()
            if self._tls is not None:
                self._tls.end_sending()
                self._transport.write(self._tls.leaving())
            with suppress(OSError):  # it has closed already
                self._transport.write_eof()

    def abort(self, reason: str) -> None:
        """Close at once."""
        self._end_connection(reason)
        self._transport.abort()

    def hold_back(self, held_back: bool) -> None:
        """Stop reading because too much waits here, or resume it."""
        self._is_held_back = held_back
        self._set_reading()

    @property
    def is_paused(self) -> bool:
        """True while nothing is read, for any reason."""
        return not self.is_lost and not self._transport.is_closing() and not self._transport.is_reading()

    def look_full(self, now: float) -> None:
        """Note if the other side has read anything since the last look."""
        size_bytes = self._transport.get_write_buffer_size()
        if size_bytes < self._full_bytes:
            # Progress counts by bytes that have left, not by an empty buffer: a slow reader of a large reply is not
            # silent.
            self.full_since = now
        self._full_bytes = size_bytes

    def is_overdue(self, now: float) -> bool:
        """Return True if a message arrives too slowly."""
        return any(partial.due_at < now for partial in self.partial.values())

    def put_off(self, seconds: float) -> None:
        """Extend the deadlines of incomplete messages by seconds in which nothing was read."""
        for partial in self.partial.values():
            partial.due_at += seconds

    def _flush(self) -> None:
        self._will_flush = False
        if self._out and not self.is_lost and not self._is_finished:
            out, self._out = self._out, []
            data = b"".join(out)
            self._write(data)
            if self.is_full:
                self._set_reading()

    def _write(self, *pieces: Buffer) -> None:
        self.traffic.sent_bytes += sum(map(len, pieces))
        if self._tls is not None:
            self._tls.encrypt_pieces(pieces)
            self._transport.write(self._tls.leaving())
            return
        for piece in pieces:  # writelines of asyncio joins them, or never says that it is full
            self._transport.write(piece)

    def _fill(self) -> None:
        self._flush()
        while self._lanes and not self.is_full:
            # A dict as a ring: the first call's next frame is written, and the call moves to the end. So a large
            # message waits for one frame of each other one, whatever their sizes.
            call, lane = next(iter(self._lanes.items()))
            del self._lanes[call]
            # Cut when the transport has room, not when the message is sent: so about _WRITE_HIGH_BYTES are buffered,
            # and a cancelled call drops the rest.
            frame = lane[0].next_frame()
            if not lane[0].size_bytes:
                lane.popleft()
            if lane:
                self._lanes[call] = lane  # behind those of other calls
            self._write(*frame)
        self._tell_drained()

    def _tell_drained(self) -> None:
        drained, self._drained = self._drained, []
        for waiting in drained:
            if not waiting.done():
                waiting.set_result(None)

    def _set_reading(self) -> None:
        """Resume reading unless too much waits: a peer that does not read replies may not send further requests."""
        if self.is_lost or self._transport.is_closing():
            return
        # Back-pressure: without it a client that sends requests and reads no replies would fill this process with
        # replies.
        waiting_bytes = sum(message.size_bytes for lane in self._lanes.values() for message in lane)
        if (
            self._is_held_back
            or waiting_bytes > self.waiting_bytes_max
            or (self.is_full and self._transport.get_write_buffer_size() > self.backlog_bytes_max)
        ):
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    # ---- reading

    def _take_frame(self, frame: WireFrame) -> None:
        kind, flags, call, payload = frame
        # Before anything else: until the greeting is read and accepted, a peer can make this side do nothing at all.
        if self.peer is None:
            self.peer = read_greeting(frame)
            self.greeted()
        elif kind == WireFrameKind.PING:
            # LAST marks an answer. Answering answers would have both sides ping each other forever.
            if not flags & LAST:
                self.send_frames(WireFrameKind.PING, LAST, call, payload)
        elif flags & MORE or (self.partial and (kind, call) in self.partial):
            self._take_part(frame)
        else:
            self.take_message(kind, flags, call, payload)

    def _take_part(self, frame: WireFrame) -> None:
        kind, flags, call, payload = frame
        now = self.loop.time()
        # By kind and call: an ERROR in parts may follow an incomplete PUSH of the same call.
        partial = self.partial.get((kind, call))
        if partial is None:
            allowed_bytes = self.allowed_bytes(kind, call, payload)
            if not allowed_bytes:
                return
            partial = self.partial[kind, call] = Partial(kind, call, allowed_bytes, now + self.arrival_s)
            # A bound on the number as well as on the bytes: begun messages with empty parts cost memory, too.
            if len(self.partial) > _PARTIAL_MAX:
                raise ProtocolError(f"{len(self.partial)} messages are begun and not finished")
        # Each byte extends the deadline at the least allowed rate, but never beyond arrival_s from now: a fast
        # beginning does not pay for a long silence later.
        partial.due_at = min(partial.due_at + len(payload) / self.arrival_bytes_per_s, now + self.arrival_s)
        if partial.is_refused:
            pass
        # Refused, but the connection stays: the remaining parts are already on their way, and other calls share it.
        elif len(partial.kept) + len(payload) > partial.allowed_bytes:
            self.refuse(partial)
            self.too_large(kind, call, partial.allowed_bytes)
        else:
            partial.kept += payload
            self._partial_bytes += len(payload)
            self.arriving(len(payload))
        if not flags & MORE:
            self.partial.pop((kind, call), None)
            message = partial.kept
            self._forget_kept(partial)
            if not partial.is_refused:
                self.take_message(kind, flags, call, message)
        elif self._partial_bytes > _PARTIAL_BYTES_MAX:
            raise ProtocolError(f"{len(self.partial)} messages are sent at once, of over {_PARTIAL_BYTES_MAX} bytes")

    def refuse(self, partial: Partial) -> None:
        """Drop this message, and ignore the rest of it."""
        partial.is_refused = True
        self._forget_kept(partial)

    def _forget_kept(self, partial: Partial) -> None:
        size_bytes, partial.kept = len(partial.kept), bytearray()
        self._partial_bytes -= size_bytes
        self.arriving(-size_bytes)

    def _end_connection(self, reason: str) -> None:
        if not self.is_lost:
            self.is_lost = True
            self._lanes.clear()
            self.partial.clear()
            # Given back before `lost`, which subclasses use to leave shared state: the server's total must not keep
            # bytes of dead connections.
            self.arriving(-self._partial_bytes)
            self._partial_bytes = 0
            self._tell_drained()
            self.lost(reason)

    # ---- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set the connection up and greet; called by asyncio."""
        self._transport = cast("asyncio.Transport", transport)
        # asyncio's default of 64 KiB is less than one frame.
        self._transport.set_write_buffer_limits(high=_WRITE_HIGH_BYTES)
        set_options(transport.get_extra_info("socket"))
        renew_in_children(self)
        name = transport.get_extra_info("peername")
        if isinstance(name, tuple):
            self.peer_name = f"{name[0]}:{name[1]}"
        self._write(greeting(token=self._token))
        self._token = ""  # of no more use

    def data_received(self, data: bytes) -> None:
        """Decrypt, split and handle received bytes; called by asyncio."""
        self.heard_at = self.loop.time()
        try:
            if self._tls is not None:
                data = self._decrypted(self._tls, data)
            self.traffic.received_bytes += len(data)
            for frame in self._reader.feed(data):
                self._take_frame(frame)
        except (ProtocolError, TlsError) as exc:
            _log.warning(
                "connection.closed",
                "the connection with %(peer)s is closed: %(error)s",
                peer=self.peer_name,
                error=printable(str(exc)),
            )
            self.abort(str(exc))

    def _decrypted(self, tls: TlsStream, data: bytes) -> bytes:
        try:
            return tls.receive(data)
        finally:
            if not self._is_finished and not self._transport.is_closing():
                self._transport.write(tls.leaving())  # why it is refused, too
            if tls.is_ended:
                self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the connection; called by asyncio."""
        self._end_connection("the connection was closed" if exc is None else str(exc))

    def pause_writing(self) -> None:
        """Note that the other side does not read; called by asyncio."""
        self.is_full = True
        self.full_since = self.loop.time()
        self._full_bytes = self._transport.get_write_buffer_size()

    def resume_writing(self) -> None:
        """Continue writing; called by asyncio."""
        self.is_full = False
        self._fill()
        self._set_reading()
