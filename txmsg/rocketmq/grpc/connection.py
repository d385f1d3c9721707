"""A client's connection: its transport, its HTTP/2, and its calls. Belongs to one loop.

Limits what a client can make the gateway keep, or do endlessly: calls, unwritten data, and frames that cause work
without carrying data.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple, Protocol, cast

from h2.errors import ErrorCodes
from h2.events import (
    DataReceived,
    Event,
    PingReceived,
    PriorityUpdated,
    RemoteSettingsChanged,
    RequestReceived,
    StreamEnded,
    StreamReset,
    UnknownFrameReceived,
    WindowUpdated,
)
from h2.exceptions import ProtocolError

from txmsg.rocketmq.grpc.call import GrpcCall, Method
from txmsg.rocketmq.grpc.framing import ClientGone, Code, quoted
from txmsg.rocketmq.grpc.http2 import Http2
from txmsg.runtime.logs import EventLog, HourlyLog
from txmsg.wire.connection import Traffic
from txmsg.wire.table import ConnectionPlace

_log = EventLog(__name__)

_CHUNK_SIZE_BYTES_MAX: Final = 64 * 1024
_WAITING_BYTES_MAX: Final = 1024 * 1024
"""Maximum unsent bytes of a client that does not read: answers to its frames, which know no window. Messages wait in
calls."""
_ODD_MAX: Final = 4096
"""Maximum frames at once that cause work and carry no data, above all the ends of calls that have just begun."""
_BRIEF_S: Final = 0.5
"""Seconds below which a call has just begun: where brokers do not answer, a client may end all by their deadlines."""
_ODD_PER_S: Final = 200.0
_CALLS_LIKE_ONE_FRAME: Final = 32
_STEP_SIZE_BYTES: Final = 32 * 1024
"""Bytes that are handled before the number of such frames is checked."""
_START_S_MAX: Final = 20.0
"""Seconds until a client must have said that it speaks HTTP/2."""
_SILENT_S: Final = 60.0
_PING_S_MAX: Final = 20.0
"""Seconds until a silent client must have answered a ping."""
_FINISH_S_MAX: Final = 5.0
"""Seconds until a client must have read the last bytes written to it."""

_TLS_HANDSHAKE: Final = b"\x16\x03"
"""The first bytes of a connection with TLS."""
_HEADERS: Final = [(b":status", b"200"), (b"content-type", b"application/grpc")]
_NO_CALL: Final = [(b":status", b"415")]


class ConnectionOwner(Protocol):
    """The owner of all connections."""

    traffic: Traffic
    told_hourly: HourlyLog

    def made(self, connection: GrpcConnection) -> bool:
        """Add a new connection. Returns False if there is no room for it."""

    def lost(self, connection: GrpcConnection) -> None:
        """Note that the connection has ended."""

    def admitted(self, connection: GrpcConnection, user: str, *, is_admin: bool) -> None:
        """Note that a call of this user is admitted. Raises Overloaded if its connection has no place."""

    def begin_call(self) -> bool:
        """Count a call that begins. Returns False if there is no room for it."""

    def done(self) -> None:
        """Note that a call has ended."""

    def failed(self, code: Code) -> None:
        """Note that a call is answered with this code, which is not OK."""

    def count_bytes(self, size_bytes: int) -> int:
        """Count bytes of requests in memory; negative numbers release them. Returns how many are left, negative if too
        many.
        """


class GrpcConnection(asyncio.Protocol):
    """One connection. methods: by path. calls_max: concurrent calls. request_size_bytes_max: of one message of a
    client.
    """

    def __init__(
        self,
        methods: Mapping[str, Method],
        *,
        calls_max: int,
        request_size_bytes_max: int,
        owner: ConnectionOwner,
    ) -> None:
        self._methods = methods
        self._request_size_bytes_max = request_size_bytes_max
        self.owner = owner
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        """Done when the connection is closed."""
        self._h2 = Http2(calls_max)
        self._transport: asyncio.Transport
        self._streams: dict[int, _ConnectionStream] = {}
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self.place: ConnectionPlace | None = None
        """The place in the port's table."""
        self.peer = ""
        self.is_over = False
        """True if it has ended, or only its last bytes are still being written."""
        self._closed_at = math.inf
        self._is_going = False
        self._kept_bytes = 0
        """Bytes of requests in memory."""
        self._is_full = False
        """True if the client reads less than is to be written."""
        self._waiting: dict[int, _Waiter] = {}
        """Calls that wait to send, by stream; the one that was given nothing for longest comes first."""
        self._has_room = False
        """True if some of them may continue once all received data is handled."""
        self._flush_is_due = False
        self._unflushed_bytes = 0
        self._has_written = False
        """True if a message was written since the client's last ping."""
        self._priority_of_call: PriorityUpdated | None = None
        """The priority that came with the last call, not in a frame of its own."""
        self._odd = 0.0
        self._odd_at = self._began_at = self.heard_at = self._loop.time()
        self._pinged_at: float | None = None
        self._has_begun = False

    # ---- of asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        name = transport.get_extra_info("peername")
        if isinstance(name, tuple):
            self.peer = f"{name[0]}:{name[1]}"
        if not self.owner.made(self):
            self.abort()
            return
        self._h2.initiate_connection()
        self.flush()

    def data_received(self, data: bytes) -> None:
        self.heard_at = self._loop.time()
        self.owner.traffic.received_bytes += len(data)
        self._pinged_at = None
        # In steps: one read may hold thousands of frames that cause work, and the connection may be ended between two
        # steps.
        for place in range(0, len(data), _STEP_SIZE_BYTES):
            if not self.is_over:
                self._received(data[place : place + _STEP_SIZE_BYTES])
        # Once per read, not per frame: a client could otherwise wake its waiting calls again with each window update.
        if self._has_room:
            self._has_room = False
            self._share_room()
        self.flush_soon()

    def _received(self, data: bytes) -> None:
        try:
            events = self._h2.receive_data(data)
        except ProtocolError as exc:
            if not self._has_begun and data.startswith(_TLS_HANDSHAKE):
                self.owner.told_hourly.error(
                    "rocketmq.client_uses_tls",
                    "%(peer)s connects by TLS, and this gateway has none: switch TLS off in the client, or give "
                    "--tls-cert and --tls-key",
                    peer=self.peer,
                )
            _log.debug(
                "rocketmq.protocol_error",
                "%(peer)s breaks HTTP/2: %(error)r",
                peer=self.peer,
                error=exc,
            )
            self.close()
            return
        for event in events:
            handler = _HANDLERS.get(event.__class__)
            if handler is not None and not self.is_over:
                handler(self, event)

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self._share_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_calls()
        self.ended.set_result(None)
        self.owner.lost(self)

    # ---- of the port

    def end_if_slow(self, now: float) -> None:
        """End it if the client has not started in time, or has been silent for long and does not answer a ping."""
        if self.place is not None and not self.place.has_spoken and self.heard_at > self._began_at:
            self.place.has_spoken = True
        if self.is_over:
            if now >= self._closed_at + _FINISH_S_MAX:
                self.abort()
        elif not self._has_begun:
            if now >= self._began_at + _START_S_MAX:
                self.abort()
        elif self._pinged_at is not None:
            if now >= self._pinged_at + _PING_S_MAX:
                self.abort()
        elif now >= self.heard_at + _SILENT_S:
            self._pinged_at = now
            self._h2.ping(b"silent??")
            self.flush()

    def go_away(self) -> None:
        """Tell the client to start no more calls here. Running calls continue."""
        if self.is_over or self._is_going:
            return
        self._is_going = True
        self.flush()
        self._write(self._h2.going_away())

    def close(self) -> None:
        """End it and all calls, after writing pending data."""
        if not self.is_over:
            self.flush()
            self._end_calls()
            self._transport.close()

    def abort(self) -> None:
        """End it at once."""
        self._end_calls()
        self._transport.abort()

    def _end_calls(self) -> None:
        if self.is_over:
            return
        self.is_over = True
        self._closed_at = self._loop.time()
        for task in self.tasks.values():
            task.cancel()

    # ---- what h2 says

    def _requested(self, event: RequestReceived) -> None:
        stream_id = event.stream_id
        self._priority_of_call = event.priority_updated
        headers = {name.decode("latin-1"): value.decode(errors="replace") for name, value in event.headers}
        if self._is_going:
            with suppress(ProtocolError):  # its client has ended it
                self._h2.reset_stream(stream_id, ErrorCodes.REFUSED_STREAM)
            return
        stream = _ConnectionStream(self, self._h2, stream_id)
        path, kind = headers.get(":path", ""), headers.get("content-type", "")
        method = self._methods.get(path)
        if headers.get(":method") != "POST" or not kind.startswith("application/grpc"):
            stream.refuse(_NO_CALL)
        elif method is None:
            stream.end_call(Code.UNIMPLEMENTED, f"{path[:200]} is not served")
        elif not self.owner.begin_call():
            stream.end_call(Code.RESOURCE_EXHAUSTED, "too many calls are under way: try again later")
        else:
            call = GrpcCall(stream, headers, size_bytes_max=self._request_size_bytes_max)
            stream.call = call
            self._streams[stream_id] = stream
            task = self._loop.create_task(call.run(method), name=path)
            self.tasks[stream_id] = task
            # Not the end of its coroutine: one that is cancelled before it begins has none.
            task.add_done_callback(lambda _: self._call_done(stream_id))

    def _call_done(self, stream_id: int) -> None:
        del self.tasks[stream_id]
        stream = self._streams.pop(stream_id)
        stream.call.release()
        del stream.call  # which knows its stream: it would keep what has come of its request until it is collected
        self.owner.done()

    def count_bytes(self, size_bytes: int) -> bool:
        """Count as `GrpcStream`. One client can use half of all memory, two a third each, so that none uses
        all of it.
        """
        self._kept_bytes += size_bytes
        return self.owner.count_bytes(size_bytes) >= self._kept_bytes

    def _arrived(self, event: DataReceived) -> None:
        stream_id, size_bytes = event.stream_id, event.flow_controlled_length or 0
        if not event.data and event.stream_ended is None:
            self._count_odd(event)
        if (stream := self._streams.get(stream_id)) is not None:
            stream.call.arrived(event.data or b"", size_bytes)
        else:
            self._h2.acknowledge_received_data(size_bytes, stream_id)

    def _ended(self, event: StreamEnded) -> None:
        if (stream := self._streams.get(event.stream_id)) is not None:
            stream.call.ended()

    def _reset(self, event: StreamReset) -> None:
        if (stream := self._streams.get(event.stream_id)) is not None:
            self.tasks[event.stream_id].cancel()
        # A call that is reset at once costs a task and brings nothing: the "rapid reset" attack (CVE-2023-44487). h2
        # does not count resets (decision 0087).
        if stream is None or self._loop.time() < stream.began_at + _BRIEF_S:
            self._count_odd(event)

    def _window_updated(self, event: WindowUpdated) -> None:
        if event.stream_id:
            self._wake(event.stream_id)
        else:
            self._has_room = True

    def _settings_changed(self, event: RemoteSettingsChanged) -> None:
        self._has_begun = True
        self._h2.forget_settings_without_use(event)
        self._has_room = True
        self._count_odd(event, weight=1 + len(self._streams) / _CALLS_LIKE_ONE_FRAME)  # h2 goes through all of them

    def _pinged(self, event: PingReceived) -> None:
        """Accept a ping after each write: clients ping after receiving data to measure their bandwidth."""
        if not self._has_written:
            self._count_odd(event)
        self._has_written = False

    def _prioritized(self, event: PriorityUpdated) -> None:
        """Ignore a priority that came with a call, as Java's client sends; count any other."""
        if event is not self._priority_of_call:
            self._count_odd(event)

    def _count_odd(self, _: Event, *, weight: float = 1.0) -> None:
        """Count frames that carry no data. A client that sends too many of them is disconnected."""
        now = self._loop.time()
        self._odd = max(0.0, self._odd - (now - self._odd_at) * _ODD_PER_S) + weight
        self._odd_at = now
        if self._odd > _ODD_MAX:
            _log.warning(
                "rocketmq.odd_frames",
                "%(peer)s is cut off: it ends calls that have just begun, or sends frames that bring nothing",
                peer=self.peer,
            )
            self._h2.close_connection(ErrorCodes.ENHANCE_YOUR_CALM)
            self.close()

    # ---- writing

    def flush_soon(self) -> None:
        """Write h2's output after all other work that is ready, so that answers of many calls are sent together."""
        if not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write h2's output."""
        self._flush_is_due = False
        self._unflushed_bytes = 0
        if self.is_over:
            return
        if data := self._h2.data_to_send():
            self._write(data)
        # Messages wait in `room` for the client's window. Answers to its frames have no window, so they are what piles
        # up here.
        if self._is_full and self._transport.get_write_buffer_size() > _WAITING_BYTES_MAX:
            _log.warning("rocketmq.client_does_not_read", "%(peer)s is cut off: it does not read", peer=self.peer)
            self.abort()

    def _write(self, data: bytes) -> None:
        self.owner.traffic.sent_bytes += len(data)
        self._transport.write(data)

    async def room(self, stream_id: int, wanted_bytes: int) -> int:
        """Wait until something can be sent. Returns how many bytes. Raises ClientGone if the client is gone."""
        try:
            while not (size_bytes := self._room(stream_id)):
                self.flush_soon()
                waiter = self._waiting[stream_id] = _Waiter(self._loop.create_future(), wanted_bytes)
                await waiter.future
        except BaseException:
            if self._waiting.pop(stream_id, None) is not None:
                self._share_room()  # what it may have been woken for
            raise
        self._waiting.pop(stream_id, None)
        return min(size_bytes, wanted_bytes)

    def _room(self, stream_id: int) -> int:
        """Return the number of bytes that can be sent now. Raises ClientGone."""
        if self.is_over:
            raise ClientGone
        try:
            window = self._h2.local_flow_control_window(stream_id)
        except ProtocolError:
            raise ClientGone from None
        return 0 if self._is_full else max(0, min(window, self._h2.max_outbound_frame_size, _CHUNK_SIZE_BYTES_MAX))

    def _share_room(self) -> None:
        """Wake calls that can send now, in turn, as far as the window of the connection allows.

        Not all that wait: a client could make a thousand calls check in vain, again and again, by a few bytes each
        time.
        """
        left_bytes = 0 if self._is_full or self.is_over else self._h2.outbound_flow_control_window
        for stream_id, waiter in self._waiting.items():
            if left_bytes <= 0:
                break
            stream = self._h2.streams.get(stream_id)
            window = waiter.wanted_bytes if stream is None else stream.outbound_flow_control_window
            if window > 0:
                waiter.wake()
                left_bytes -= min(window, waiter.wanted_bytes)

    def has_written(self, size_bytes: int) -> None:
        """Note that a message was written."""
        self._has_written = True
        self._unflushed_bytes += size_bytes
        if self._unflushed_bytes >= _CHUNK_SIZE_BYTES_MAX:
            self.flush()
        else:
            self.flush_soon()

    def _wake(self, stream_id: int) -> None:
        if (waiter := self._waiting.get(stream_id)) is not None:
            waiter.wake()


_HANDLERS: Final[dict[type[Event], Callable[[GrpcConnection, Any], None]]] = {
    RequestReceived: GrpcConnection._requested,
    DataReceived: GrpcConnection._arrived,
    StreamEnded: GrpcConnection._ended,
    StreamReset: GrpcConnection._reset,
    WindowUpdated: GrpcConnection._window_updated,
    RemoteSettingsChanged: GrpcConnection._settings_changed,
    PingReceived: GrpcConnection._pinged,
    PriorityUpdated: GrpcConnection._prioritized,
    UnknownFrameReceived: GrpcConnection._count_odd,
}


class _Waiter(NamedTuple):
    """A call that cannot send at the moment."""

    future: asyncio.Future[None]
    wanted_bytes: int
    """The minimum number of bytes to send."""

    def wake(self) -> None:
        """Make it check again."""
        if not self.future.done():
            self.future.set_result(None)


class _ConnectionStream:
    """One call's `GrpcStream` over a connection."""

    call: GrpcCall

    def __init__(self, connection: GrpcConnection, h2: Http2, stream_id: int) -> None:
        self.peer = connection.peer
        self.count_bytes = connection.count_bytes
        self._failed = connection.owner.failed
        self._owner = connection.owner
        self.began_at = connection.heard_at
        self._connection, self._h2, self._id = connection, h2, stream_id
        self._has_headers = False

    async def send_data(self, data: bytes) -> None:
        """Implement `GrpcStream`."""
        place = 0
        while place < len(data):
            chunk = data[place : place + await self._connection.room(self._id, len(data) - place)]
            try:
                if not self._has_headers:
                    self._has_headers = True
                    self._h2.send_headers(self._id, _HEADERS)
                self._h2.send_data(self._id, chunk)
            except ProtocolError:
                raise ClientGone from None
            self._connection.has_written(len(chunk))
            place += len(chunk)

    def end_call(self, code: Code, text: str) -> None:
        """Implement `GrpcStream`."""
        if code is not Code.OK:
            self._failed(code)
        trailers = [] if self._has_headers else list(_HEADERS)
        trailers.append((b"grpc-status", str(int(code)).encode()))
        if text:
            trailers.append((b"grpc-message", quoted(text)))
        self.refuse(trailers)

    def refuse(self, headers: list[tuple[bytes, bytes]]) -> None:
        """End it with these headers."""
        if self._connection.is_over or self._id not in self._h2.streams:
            return
        with suppress(ProtocolError):  # its client has ended it
            self._h2.send_headers(self._id, headers, end_stream=True)
            if not self._h2.streams[self._id].closed:
                self._h2.reset_stream(self._id)  # what its client would still send is of no use
        self._connection.flush_soon()

    def admitted(self, user: str, *, is_admin: bool) -> None:
        """Implement `GrpcStream`."""
        self._owner.admitted(self._connection, user, is_admin=is_admin)

    def allow(self, size_bytes: int) -> None:
        """Implement `GrpcStream`."""
        if not self._connection.is_over:
            self._h2.acknowledge_received_data(size_bytes, self._id)
            self._connection.flush_soon()
