"""The gateway's port, seen by unusual and hostile HTTP/2 clients."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import cast

import pytest
from h2.errors import ErrorCodes
from h2.settings import SettingCodes
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from tests.rocketmq.http2 import PREFACE, REQUEST_SIZE_BYTES_MAX, WAIT_S, Peer, Served, bodies, data, message, served
from tests.waiting import until_async
from txmsg.rocketmq.grpc import connection as module
from txmsg.rocketmq.grpc import http2
from txmsg.rocketmq.grpc import port as port_module

Odd = Callable[[Peer], list[bytes | Frame]]

UNKNOWN = b"\0\0\1\xfa\0\0\0\0\0x"
"""A frame of an unknown type."""


def _halves(_: Peer) -> list[bytes | Frame]:
    whole = message(b"hi")
    return [data(1, whole[:3], ends=False), data(1, b"", ends=False), data(1, whole[3:])]


def _bytes(_: Peer) -> list[bytes | Frame]:
    return [*(data(1, bytes([byte]), ends=False) for byte in message(b"hi")), data(1, b"")]


ODD: dict[str, Odd] = {
    "in halves, with nothing in between": _halves,
    "byte by byte": _bytes,
    "an unknown frame": lambda _: [UNKNOWN, data(1, message(b"hi"))],
    "a priority": lambda _: [PriorityFrame(1, depends_on=0, stream_weight=5), data(1, message(b"hi"))],
    "padded": lambda _: [DataFrame(1, message(b"hi"), pad_length=9, flags=["PADDED", "END_STREAM"])],
    "trailers": lambda peer: [
        data(1, message(b"hi"), ends=False),
        HeadersFrame(1, peer._encoder.encode([("x", "y")]), flags=["END_HEADERS", "END_STREAM"]),
    ],
    "the client begins no more calls": lambda _: [GoAwayFrame(0), PingFrame(0, b"12345678"), data(1, message(b"hi"))],
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
async def test_every_valid_http2_request_is_answered(odd: Odd) -> None:
    async with served() as place:
        peer = await place.connect()
        peer.send(peer.headers(1, "/t/Echo", ("x-mq-client-id", "订单")), *odd(peer))
        body, headers = await peer.answer(1)
        assert list(bodies(body)) == [b"hi"]
        assert headers["grpc-status"] == "0"


@pytest.mark.parametrize(
    ("status", "headers", "body"),
    [
        pytest.param("12", {":path": "/t/Other"}, message(b""), id="unknown method"),
        pytest.param("12", {"grpc-encoding": "gzip"}, b"\1\0\0\0\2hi", id="compressed"),
        pytest.param("8", {}, b"\0" + (REQUEST_SIZE_BYTES_MAX + 1).to_bytes(4, "big"), id="too large"),
        pytest.param("13", {}, message(b"hi")[:6], id="cut"),
        pytest.param("13", {"grpc-timeout": "9" * 400 + "H"}, message(b"hi"), id="a timeout of too many digits"),
        pytest.param("13", {"grpc-timeout": "soon"}, message(b"hi"), id="no timeout"),
        pytest.param("4", {":path": "/t/Hold", "grpc-timeout": "0n"}, message(b"hi"), id="a deadline that is over"),
        pytest.param("4", {":path": "/t/Hold", "grpc-timeout": "30m"}, message(b"hi"), id="a deadline"),
        pytest.param("0", {"grpc-timeout": "99999999H"}, message(b"hi"), id="a deadline in 11,000 years"),
    ],
)
async def test_call_ends_with_its_status_and_the_connection_stays_open(
    status: str, headers: dict[str, str], body: bytes
) -> None:
    async with served() as place:
        peer = await place.connect()
        peer.send(peer.headers(1, changed=headers), data(1, body))
        assert await peer.status(1) == status
        peer.send(peer.call(3, b"hi"))
        assert await peer.status(3) == "0"


@pytest.mark.parametrize("changed", [{":method": "GET"}, {"content-type": "application/json"}])
async def test_request_that_is_not_a_grpc_call_gets_415(changed: dict[str, str]) -> None:
    async with served() as place:
        peer = await place.connect()
        peer.send(peer.headers(1, changed=changed), data(1, b""))
        assert await peer.answer(1) == (b"", {":status": "415"})


async def test_calls_that_end_before_they_start_leave_nothing_behind() -> None:
    """Their data counts as read, or else the connection would stall."""
    async with served() as place:
        peer = await place.connect()
        count = 1000
        for number in range(count):
            id_ = 2 * number + 1
            end = RstStreamFrame(id_, error_code=ErrorCodes.CANCEL)
            peer.send(peer.headers(id_), data(id_, bytes(10_000), ends=False), end)
            if number % 100 == 99:  # so that its window is never used up
                peer.send(ping := PingFrame(0, number.to_bytes(8, "big")))
                while (await peer.first(PingFrame)).opaque_data != ping.opaque_data:
                    pass
        peer.send(peer.call(2 * count + 1, b"hi"))
        assert await peer.status(2 * count + 1) == "0"
        assert peer.windows[0] > count * 10_000 - http2._CONNECTION_WINDOW_SIZE_BYTES
        [connection] = place.port.connections
        assert (connection.tasks, connection._streams, place.port.calls) == ({}, {}, 0)


@pytest.mark.parametrize("how", ["it resets", "it goes"])
async def test_a_method_is_cancelled_when_its_client_ends_the_call(how: str) -> None:
    async with served() as place:
        peer = await place.connect()
        peer.send(peer.headers(1, "/t/Hold"))
        await until_async(lambda: place.service.begun == 1)
        if how == "it goes":
            peer.writer.transport.abort()
        else:
            peer.send(RstStreamFrame(1, error_code=ErrorCodes.CANCEL))
        await until_async(lambda: place.service.cancelled == 1)
        await until_async(lambda: place.port.calls == 0)


async def test_beyond_the_calls_of_all_connections_further_ones_fail() -> None:
    async with served(calls_max=2) as place:
        one, other = await place.connect(), await place.connect()
        for peer in (one, other):
            peer.send(peer.call(1, b"hi", "/t/Hold"))
        await until_async(lambda: place.service.begun == 2)
        one.send(one.call(3, b"hi"))
        assert await one.status(3) == "8"
        place.service.opens.set()
        assert [await one.status(1), await other.status(1)] == ["0", "0"]
        one.send(one.call(5, b"hi"))
        assert await one.status(5) == "0"


async def test_client_exceeding_its_announced_call_limit_is_disconnected() -> None:
    async with served(calls_of_connection_max=3) as place:
        peer = await place.connect()
        assert (await peer.first(SettingsFrame)).settings[SettingsFrame.MAX_CONCURRENT_STREAMS] == 3
        for id_ in (1, 3, 5, 7):
            peer.send(peer.headers(id_, "/t/Hold"))
        [said] = await peer.frames(GoAwayFrame)
        assert said.error_code == ErrorCodes.PROTOCOL_ERROR
        await until_async(lambda: place.port.calls == 0)


async def test_connections_above_the_limit_of_a_port_are_closed_until_one_ends() -> None:
    async with served(connections_max=1) as place:
        first = await place.connect()
        first.send(first.call(1, b"hi"))
        assert await first.status(1) == "0"
        second = await place.connect()
        assert await second.next() is None
        first.send(first.call(3, b"hi"))
        assert await first.status(3) == "0"
        first.writer.close()
        await until_async(lambda: not place.port.connections)
        third = await place.connect()
        third.send(third.call(1, b"hi"))
        assert await third.status(1) == "0"


@pytest.mark.parametrize("is_silent", [True, False])
async def test_unauthenticated_connections_do_not_block_others_from_a_port(is_silent: bool) -> None:
    """Connections without a call lose their places, the oldest first: a client that calls at once is served."""
    async with served(connections_max=8) as place:
        lasting = await place.connect()
        lasting.send(lasting.call(1, b"hi"))
        assert await lasting.status(1) == "0"
        for number in range(40):
            await place.connect(is_silent=is_silent)
            if not number % 8:
                peer = await place.connect()
                peer.send(peer.call(1, b"hi"))
                assert await peer.status(1) == "0"
                peer.writer.close()
        lasting.send(lasting.call(3, b"hi"))
        assert await lasting.status(3) == "0"
        assert len(place.port.table) <= 8


def _begun(peer: Peer) -> bytes:
    """Return an unfinished header block."""
    return HeadersFrame(1, peer.headers(1).data).serialize()


FLOODS: dict[str, Callable[[Peer], bytes]] = {
    "calls that end at once": lambda peer: b"".join(
        peer.headers(id_).serialize() + RstStreamFrame(id_).serialize() for id_ in range(1, 12_000, 2)
    ),
    "pings": lambda _: PingFrame(0, b"12345678").serialize() * 6000,
    "settings": lambda _: SettingsFrame(0).serialize() * 6000,
    "settings beside many calls": lambda peer: (
        b"".join(peer.headers(id_, "/t/Hold").serialize() for id_ in range(1, 192, 2))
        + SettingsFrame(0).serialize() * 1500
    ),
    "unknown frames": lambda _: UNKNOWN * 6000,
    "priorities": lambda _: PriorityFrame(1, stream_weight=5).serialize() * 6000,
    "data of no bytes": lambda peer: (
        peer.headers(1, "/t/Hold").serialize() + data(1, b"", ends=False).serialize() * 6000
    ),
    "headers without end": lambda peer: _begun(peer) + ContinuationFrame(1, bytes(10_000)).serialize() * 100,
    "a header that is too large": lambda peer: peer.headers(1, "/t/Echo", *[("x", "y" * 1000)] * 20).serialize(),
    "a frame that is too large": lambda _: b"\xff\xff\xff\0\0\0\0\0\1" + bytes(40_000),
    "more than the window": lambda peer: (
        peer.headers(1, "/t/Hold").serialize() + data(1, bytes(16_000), ends=False).serialize() * 70
    ),
}


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
async def test_flooding_client_is_disconnected_and_others_are_served(
    flood: Callable[[Peer], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_ODD_PER_S", 0.0)  # a slow machine may take longer than the window for floods
    async with served() as place:
        peer, other = await place.connect(), await place.connect()
        peer.send(flood(peer))
        assert [said.error_code for said in await peer.frames(GoAwayFrame)] != [ErrorCodes.NO_ERROR]
        other.send(other.call(1, b"hi"))
        assert await other.status(1) == "0"
        await until_async(lambda: len(place.port.connections) == 1)
        assert place.port.calls == 0


class Full:
    """The transport of a client that reads nothing."""

    def __init__(self) -> None:
        self.waiting_bytes = 0
        self.is_aborted = False

    def get_extra_info(self, _: str) -> None:
        return None

    def write(self, what: bytes) -> None:
        self.waiting_bytes += len(what)

    def get_write_buffer_size(self) -> int:
        return self.waiting_bytes

    def close(self) -> None:
        """Would close once everything is written."""

    def abort(self) -> None:
        self.is_aborted = True


async def test_priorities_and_pings_of_official_clients_are_not_a_flood(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The Java client sends priorities, the Go client pings to measure bandwidth."""
    monkeypatch.setattr(module, "_ODD_MAX", 5)
    async with served() as place:
        peer = await place.connect()
        for id_ in range(1, 41, 2):
            weighed = peer.headers(id_)
            weighed.flags.add("PRIORITY")
            weighed.stream_weight = 15
            peer.send(weighed, data(id_, message(b"hi")))
            assert await peer.status(id_) == "0"
            peer.send(PingFrame(0, b"12345678"))
            await peer.first(PingFrame)


async def test_calls_cancelled_at_their_deadlines_are_not_a_flood(monkeypatch: pytest.MonkeyPatch) -> None:
    """As all calls of a client do, repeatedly, while brokers do not answer."""
    monkeypatch.setattr(module, "_ODD_MAX", 5)
    monkeypatch.setattr(module, "_ODD_PER_S", 0.0)
    async with served() as place:
        peer = await place.connect()
        begun = range(1, 41, 2)
        peer.send(*(peer.headers(id_, "/t/Hold") for id_ in begun))
        await until_async(lambda: place.service.begun == len(begun))
        [connection] = place.port.connections
        for stream in connection._streams.values():
            stream.began_at -= module._BRIEF_S
        peer.send(*(RstStreamFrame(id_, error_code=ErrorCodes.CANCEL) for id_ in begun), peer.call(41, b"hi"))
        assert await peer.status(41) == "0"
        await until_async(lambda: place.service.cancelled == len(begun))


async def test_client_that_does_not_read_replies_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ODD_MAX", math.inf)
    async with served() as place:
        connection, transport = place.port._connected(), Full()
        connection.connection_made(cast(asyncio.Transport, transport))
        connection.data_received(PREFACE + SettingsFrame(0).serialize())
        connection.pause_writing()
        pings = PingFrame(0, b"12345678").serialize() * 1000
        while not transport.is_aborted:
            assert transport.waiting_bytes < module._WAITING_BYTES_MAX + len(pings)
            connection.data_received(pings)
            connection.flush()
        connection.connection_lost(None)


async def test_client_cannot_send_more_of_a_call_until_the_method_reads_it() -> None:
    async with served() as place:
        peer = await place.connect()
        peer.send(peer.headers(1, "/t/Hold"))
        body = message(bytes(100)) * 5000
        for place_ in range(0, len(body), 16_000):
            peer.send(data(1, body[place_ : place_ + 16_000], ends=place_ + 16_000 >= len(body)))
        peer.send(PingFrame(0, b"12345678"))
        await peer.first(PingFrame)
        assert 1 not in peer.windows
        place.service.opens.set()
        peer.send(*(WindowUpdateFrame(id_, window_increment=10_000_000) for id_ in (0, 1)))
        answer, headers = await peer.answer(1)
        assert (list(bodies(answer)), headers["grpc-status"]) == ([bytes(100)] * 5000, "0")


async def test_large_requests_share_bounded_memory_and_small_ones_have_a_reserve() -> None:
    async with served(requests_size_bytes_max=200_000) as place:
        peer = await place.connect((SettingsFrame.INITIAL_WINDOW_SIZE, 10**6))
        peer.send(WindowUpdateFrame(0, window_increment=10**6))
        body = bytes(90_000)
        for id_ in (1, 3):
            peer.send(peer.headers(id_))
            for place_ in range(0, 80_000, 16_000):
                peer.send(data(id_, message(body)[place_ : place_ + 16_000], ends=False))
        assert await peer.status(3) == "8"
        small = message(bytes(30_000))
        peer.send(peer.headers(5), data(5, small[:16_000], ends=False), data(5, small[16_000:]))
        assert await peer.status(5) == "0"
        peer.send(data(1, message(body)[80_000:]))
        assert await peer.status(1) == "0"
        await until_async(lambda: place.port.calls == 0)
        assert place.port.requests_size_bytes == 0


async def test_client_that_fills_its_share_of_memory_leaves_as_much_for_others() -> None:
    async with served(requests_size_bytes_max=300_000) as place:
        one, other = [await place.connect((SettingsFrame.INITIAL_WINDOW_SIZE, 10**6)) for _ in range(2)]
        large = message(bytes(90_000))
        pieces = [large[at : at + 16_000] for at in range(0, len(large), 16_000)]
        for peer, id_ in ((one, 1), (one, 3), (other, 1)):
            peer.send(WindowUpdateFrame(0, window_increment=10**6))
            peer.send(peer.headers(id_), *(data(id_, piece, ends=False) for piece in pieces[:-1]))
            if id_ == 3:
                assert await peer.status(3) == "8"
        for peer in (one, other):
            peer.send(data(1, pieces[-1]))
            assert await peer.status(1) == "0"


async def test_reply_respects_the_flow_control_of_its_client() -> None:
    async with served() as place:
        peer = await place.connect((SettingsFrame.INITIAL_WINDOW_SIZE, 10))
        peer.send(peer.call(1, b"a" * 100), peer.call(3, b"b" * 100))
        said = [(await peer.first(DataFrame)) for _ in range(2)]
        assert {frame.stream_id: len(frame.data) for frame in said} == {1: 10, 3: 10}
        peer.send(WindowUpdateFrame(1, window_increment=1000))
        rest, headers = await peer.answer(1)
        assert list(bodies(said[0].data + rest)) == [b"a" * 100]
        assert headers["grpc-status"] == "0"
        peer.send(SettingsFrame(0, {SettingsFrame.INITIAL_WINDOW_SIZE: 1000}))
        rest, _ = await peer.answer(3)
        assert list(bodies(said[1].data + rest)) == [b"b" * 100]


async def _have_waited(peer: Peer, *frames: Frame) -> None:
    """Send these frames, and wait after each until the server has processed it."""
    for frame in frames:
        peer.send(frame, PingFrame(0, b"12345678"))
        await peer.first(PingFrame)


async def _without_room(place: Served) -> Peer:
    """Return a connection whose window is used up by call 1; its call 3, of one message, waits too."""
    peer = await place.connect((SettingsFrame.INITIAL_WINDOW_SIZE, 2**31 - 1))
    peer.send(peer.headers(1, "/t/Pour"))
    poured = 0
    while poured < 65_535:
        poured += len((await peer.first(DataFrame)).data)
    peer.send(peer.call(3, b"hi"))
    await until_async(lambda: [len(connection._waiting) for connection in place.port.connections] == [2])
    return peer


async def test_streaming_call_leaves_bandwidth_for_others_of_its_connection() -> None:
    """For example, the reply to an acknowledgement, while large messages go to a slow client."""
    async with served() as place:
        peer = await _without_room(place)
        peer.send(WindowUpdateFrame(0, window_increment=100))
        assert (await peer.first(DataFrame)).stream_id == 1
        peer.send(WindowUpdateFrame(0, window_increment=100))
        body, headers = await peer.answer(3)
        assert (list(bodies(body)), headers["grpc-status"]) == ([b"hi"], "0")
        assert (await peer.first(DataFrame)).stream_id == 1


async def test_call_that_ends_passes_its_window_on_to_the_next() -> None:
    async with served() as place:
        peer = await _without_room(place)
        peer.send(WindowUpdateFrame(0, window_increment=100), RstStreamFrame(1, error_code=ErrorCodes.CANCEL))
        assert await peer.status(3) == "0"


async def test_connection_window_update_does_not_wake_calls_that_wait_for_their_own_windows() -> None:
    """A client could wake a thousand of them by each frame of 13 bytes."""
    async with served() as place:
        peer = await place.connect((SettingsFrame.INITIAL_WINDOW_SIZE, 0))
        peer.send(*(peer.call(id_, b"hi") for id_ in (1, 3, 5)))
        [connection] = await until_async(lambda: [each for each in place.port.connections if len(each._waiting) == 3])
        waiting = dict(connection._waiting)
        await _have_waited(peer, *[WindowUpdateFrame(0, window_increment=1)] * 3)
        assert connection._waiting == waiting
        peer.send(WindowUpdateFrame(3, window_increment=1000))
        assert await peer.status(3) == "0"
        assert connection._waiting == {id_: waiting[id_] for id_ in (1, 5)}


async def test_unread_replies_wait_in_their_call() -> None:
    async with served() as place:
        peer = await place.connect((SettingsFrame.INITIAL_WINDOW_SIZE, 2**31 - 1))
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        peer.send(WindowUpdateFrame(0, window_increment=2**31 - 1 - 65_535), peer.headers(1, "/t/Pour"))
        await until_async(lambda: any(connection._waiting for connection in place.port.connections))
        [connection] = place.port.connections
        assert connection._transport.get_write_buffer_size() < 4 * module._CHUNK_SIZE_BYTES_MAX
        peer.send(RstStreamFrame(1, error_code=ErrorCodes.CANCEL))
        await until_async(lambda: place.service.cancelled == 1)


async def test_client_cannot_enlarge_the_header_table_of_a_connection() -> None:
    async with served() as place:
        peer = await place.connect((SettingsFrame.HEADER_TABLE_SIZE, 2**32 - 1))
        peer._decoder.max_allowed_table_size = 2**32 - 1
        peer.send(peer.call(1, b"hi"))
        assert await peer.status(1) == "0"
        [connection] = place.port.connections
        assert connection._h2.encoder.header_table_size == http2._HEADER_TABLE_SIZE_BYTES


async def test_unknown_settings_are_not_stored() -> None:
    """400 kB of them used 54 MB, and each further SETTINGS frame took 4 ms."""
    async with served() as place:
        peer = await place.connect()
        unknown = b"".join(code.to_bytes(2, "big") + bytes(4) for code in range(0x1000, 0x1800))
        frame = len(unknown).to_bytes(3, "big") + b"\4\0\0\0\0\0" + unknown
        peer.send(frame, frame, SettingsFrame(0, {SettingsFrame.INITIAL_WINDOW_SIZE: 0}), peer.call(1, b"hi"))
        await until_async(lambda: any(connection._waiting for connection in place.port.connections))
        [connection] = place.port.connections
        assert all(isinstance(code, SettingCodes) for code in connection._h2.remote_settings)
        peer.send(WindowUpdateFrame(1, window_increment=1000))
        assert await peer.status(1) == "0"


async def test_silent_connection_and_unanswered_ping_end_the_connection() -> None:
    async with served() as place:
        silent = await place.connect(is_silent=True)
        [waiting] = await until_async(lambda: list(place.port.connections))
        waiting.end_if_slow(waiting._began_at + module._START_S_MAX - 0.001)
        assert not waiting.is_over
        waiting.end_if_slow(waiting._began_at + module._START_S_MAX)
        assert await silent.frames(GoAwayFrame) == []

        peer = await place.connect()
        peer.send(peer.call(1, b"hi"))
        assert await peer.status(1) == "0"
        [connection] = place.port.connections
        connection.end_if_slow(connection.heard_at + module._SILENT_S - 0.001)
        assert connection._pinged_at is None
        connection.end_if_slow(pinged_at := connection.heard_at + module._SILENT_S)
        ping = await peer.first(PingFrame)
        connection.end_if_slow(pinged_at + module._PING_S_MAX - 0.001)
        peer.send(PingFrame(0, ping.opaque_data, flags=["ACK"]))
        await until_async(lambda: connection._pinged_at is None)
        connection.end_if_slow(pinged_at := connection.heard_at + module._SILENT_S)
        connection.end_if_slow(pinged_at + module._PING_S_MAX)
        assert await peer.frames(GoAwayFrame) == []


async def test_port_closes_silent_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port_module, "_LOOK_S", 0.01)
    monkeypatch.setattr(module, "_START_S_MAX", 0)
    async with served() as place:
        silent = await place.connect(is_silent=True)
        place.port._end_slow()
        assert await silent.frames(GoAwayFrame) == []


async def test_stopping_port_refuses_new_calls_and_lets_running_ones_finish() -> None:
    async with served() as place:
        peer, held = await place.connect(), await place.connect()
        peer.send(peer.call(1, b"hi", "/t/Hold"))
        held.send(held.headers(1, "/t/Pour"))
        await until_async(lambda: place.service.begun == 2)
        stopping = asyncio.create_task(place.port.stop(WAIT_S))
        said = await peer.first(GoAwayFrame)
        assert (said.error_code, said.last_stream_id) == (ErrorCodes.NO_ERROR, 1)
        peer.send(peer.call(3, b"hi"))
        refused = await peer.first(RstStreamFrame)
        assert (refused.stream_id, refused.error_code) == (3, ErrorCodes.REFUSED_STREAM)
        place.service.opens.set()
        assert await peer.status(1) == "0"
        held.writer.close()
        await stopping
        assert await peer.frames(GoAwayFrame) == []
        with pytest.raises(ConnectionError):
            await place.connect()


async def test_stopping_port_cancels_calls_that_take_too_long() -> None:
    async with served() as place:
        peer = await place.connect()
        peer.send(peer.headers(1, "/t/Hold"))
        await until_async(lambda: place.service.begun == 1)
        await place.port.stop(0)
        assert place.service.cancelled == 1
        assert len(await peer.frames(GoAwayFrame)) == 1


async def test_http2_violation_cancels_all_calls_and_closes_the_connection_soon() -> None:
    async with served() as place:
        peer = await place.connect()
        peer.send(peer.headers(1, "/t/Hold"))
        await until_async(lambda: place.service.begun == 1)
        [connection] = place.port.connections
        full = Full()
        real, connection._transport = connection._transport, cast(asyncio.Transport, full)
        connection.data_received(PREFACE + bytes(40_000))
        await until_async(lambda: place.service.cancelled == 1)
        connection.end_if_slow(connection._closed_at + module._FINISH_S_MAX - 0.001)
        assert not full.is_aborted
        connection.end_if_slow(connection._closed_at + module._FINISH_S_MAX)
        assert full.is_aborted
        connection._transport = real
        connection.abort()


async def test_only_the_last_ended_calls_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Late frames for the others do no harm."""
    monkeypatch.setattr(http2.Http2, "MAX_CLOSED_STREAMS", 5)
    monkeypatch.setattr(http2, "_COUNTED_EVERY", 1)
    async with served() as place:
        peer = await place.connect()
        for id_ in range(1, 41, 2):
            peer.send(peer.call(id_, b"hi"))
            assert await peer.status(id_) == "0"
        [connection] = place.port.connections
        assert len(connection._h2._closed_streams) == 5
        peer.send(RstStreamFrame(1), WindowUpdateFrame(3, window_increment=1), data(5, b"x"), peer.call(41, b"hi"))
        assert await peer.status(41) == "0"
