"""Calls over real connections, by the asyncio client and by the blocking one, with the same claims."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest

from tests.ports import own_port
from tests.streams import answering
from tests.waiting import until_async
from tests.wire.services import Answers, Echo, ask, serving
from txmsg.errors import (
    BrokerUnavailable,
    InvalidName,
    MessageTooLarge,
    MisuseError,
    OffsetOutOfRange,
    OutcomeUnknown,
    Overloaded,
    ProtocolError,
    TxmsgError,
    UnknownTopic,
)
from txmsg.wire import blocking as blocking_module
from txmsg.wire import channel as channel_module
from txmsg.wire.blocking import BlockingChannel
from txmsg.wire.channel import Channel
from txmsg.wire.connection import greeting
from txmsg.wire.failures import was_told
from txmsg.wire.frames import FrameReader, WireFrameKind
from txmsg.wire.handlers import Handlers
from txmsg.wire.method import Method
from txmsg.wire.server import WireServer
from txmsg.wire.shared import ConnectionLimits, Shared
from txmsg.wire.v1.txmsg_pb2 import HeldReply, HeldRequest, SendReply, SendRequest

WAIT_S = 60.0
Asking = Callable[..., Awaitable[HeldReply]]


@pytest.fixture(params=["asyncio", "blocking"])
def asking(request: pytest.FixtureRequest) -> Asking:
    """Make one call over a new channel, by either client."""

    async def by_asyncio(
        address: str, method: Method[HeldRequest, HeldReply], content: bytes = b"x", **times: float
    ) -> HeldReply:
        async with Channel(address) as channel:
            return await channel.call(method, ask(content), timeout_s=times.get("timeout_s", WAIT_S))

    def by_thread(
        address: str, method: Method[HeldRequest, HeldReply], content: bytes = b"x", **times: float
    ) -> HeldReply:
        with BlockingChannel(address) as channel:
            return channel.call(method, ask(content), timeout_s=times.get("timeout_s", WAIT_S))

    async def blocking(*args: object, **kwargs: object) -> HeldReply:
        return await asyncio.to_thread(by_thread, *args, **kwargs)  # type: ignore[arg-type]

    return by_asyncio if request.param == "asyncio" else blocking


async def out_of_time(call: Callable[[], Awaitable[object]]) -> OutcomeUnknown:
    """Return the error of a call that was sent and got no answer in time.

    On a busy machine that may be over before it is sent, which BrokerUnavailable says: then it is made again.
    """
    while True:
        with pytest.raises((BrokerUnavailable, OutcomeUnknown)) as caught:
            await call()
        if isinstance(caught.value, OutcomeUnknown):
            return caught.value


@pytest.mark.parametrize("size", [0, 5, 200_000, 20_000_000])
async def test_message_of_any_size_round_trips(asking: Asking, size: int) -> None:
    content = bytes(size)
    async with serving() as (address, _, _):
        assert (await asking(address, Echo.back, content)).held == content


async def test_too_large_reply_is_refused_and_the_next_one_is_not(
    asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (channel_module, blocking_module):
        monkeypatch.setattr(module, "MESSAGE_SIZE_BYTES_MAX", 1_000_000)
    async with serving() as (address, _, _):
        with pytest.raises(ProtocolError, match="sent a reply of over 1000000 bytes"):
            await asking(address, Echo.back, bytes(1_000_001))
        with BlockingChannel(address) as channel:
            with pytest.raises(ProtocolError, match="sent a reply of over 1000000 bytes"):
                await asyncio.to_thread(channel.call, Echo.back, ask(bytes(5_000_000)), timeout_s=WAIT_S)
            reply = await asyncio.to_thread(channel.call, Echo.back, ask(bytes(900_000)), timeout_s=WAIT_S)
            assert len(reply.held) == 900_000


async def test_server_can_listen_on_a_socket_file(asking: Asking, tmp_path: Path) -> None:
    server = WireServer(Handlers({Echo: Answers()}), Shared(connections_max=5))
    address = await server.bind(f"unix:{tmp_path}/s")
    await server.start()
    assert (await asking(address, Echo.back, b"local")).held == b"local"
    await server.stop(0)


async def test_first_address_that_accepts_a_connection_is_called() -> None:
    nobody = f"127.0.0.1:{own_port()}"
    async with serving() as (address, _, _):
        with BlockingChannel(["no-such-host.invalid:1", nobody, address]) as channel:
            reply = await asyncio.to_thread(channel.call, Echo.back, ask(b"x"), timeout_s=WAIT_S)
    assert reply.held == b"x"
    with BlockingChannel([nobody, address]) as channel:
        with pytest.raises(BrokerUnavailable, match=f"{nobody} or {address}"):
            await asyncio.to_thread(channel.call, Echo.back, ask(b"x"), timeout_s=WAIT_S)


async def test_refusal_is_raised_as_its_error_class(asking: Asking) -> None:
    async with serving() as (address, _, _):
        with pytest.raises(UnknownTopic, match="no topic of this name") as caught:
            await asking(address, Echo.refuse, b"")
        assert was_told(caught.value)
        with pytest.raises(OffsetOutOfRange) as out:
            await asking(address, Echo.refuse, b"x")
        assert (out.value.begin, out.value.end) == (3, 5)


async def test_unexpected_error_of_a_method_is_reported_without_its_text(
    asking: Asking, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as (address, _, _):
        with pytest.raises(TxmsgError, match="the server failed: ZeroDivisionError; its log says more"):
            await asking(address, Echo.fail)
    assert "ZeroDivisionError" in caplog.text


async def test_unknown_method_is_named(asking: Asking) -> None:
    async with serving() as (address, _, _):
        with pytest.raises(ProtocolError, match="Echo/New is not known here"):
            await asking(address, Method("Echo/New", HeldRequest, HeldReply))


async def test_request_with_a_nul_does_not_reach_its_method() -> None:
    send = Method("Sending/Send", SendRequest, SendReply)
    server = WireServer(Handlers({type("Sending", (), {"send": send}): _Never()}), Shared(connections_max=5))
    address = await server.bind("127.0.0.1:0")
    await server.start()
    async with Channel(address) as channel:
        with pytest.raises(InvalidName, match="group"):
            await channel.call(send, SendRequest(group="a\0b"), timeout_s=WAIT_S)
    await server.stop(0)


class _Never:
    async def send(self, request: SendRequest) -> SendReply:
        raise AssertionError("a request with a NUL reached the method")


async def test_too_large_request_is_refused_and_the_connection_stays_open() -> None:
    async with serving(size_bytes_max=300_000) as (address, answers, _), Channel(address) as channel:
        with pytest.raises(MessageTooLarge, match="300000 bytes"):
            await channel.call(Echo.back, ask(bytes(2_000_000)), timeout_s=WAIT_S)
        assert (await channel.call(Echo.back, ask(bytes(250_000)), timeout_s=WAIT_S)).held == bytes(250_000)
    assert answers.begun == 1


# ---- without an answer


async def test_call_without_a_server_has_certainly_not_run(asking: Asking) -> None:
    async with serving() as (address, _, _):
        pass
    with pytest.raises(BrokerUnavailable, match=f"broker {address} cannot be reached") as caught:
        await asking(address, Echo.back)
    assert not was_told(caught.value)


async def test_timed_out_call_has_unknown_outcome_and_is_cancelled(asking: Asking) -> None:
    async with serving() as (address, answers, _):
        while not answers.cancelled:  # on a busy machine it may time out before the server has started it
            error = await out_of_time(lambda: asking(address, Echo.wait, timeout_s=0.2))
            assert "no answer in time" in str(error)
            assert not was_told(error)
        assert answers.ended == 0


async def test_call_on_a_lost_connection_has_unknown_outcome(asking: Asking) -> None:
    async with serving() as (address, answers, server):
        call = asyncio.ensure_future(asking(address, Echo.wait))
        await until_async(lambda: answers.begun)
        for connection in list(server.shared.connections):
            connection.abort("for a test")
        with pytest.raises(OutcomeUnknown, match="the request may have been carried out"):
            await call


async def test_peer_that_never_greets_is_not_a_server(asking: Asking) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(BrokerUnavailable, match="in time"):
            await asking(address, Echo.back, timeout_s=0.2)


async def test_other_protocol_at_the_port_is_reported(asking: Asking) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await reader.read()
        writer.close()
        gone.set()

    gone = asyncio.Event()
    async with answering(talk) as address:
        with pytest.raises(BrokerUnavailable, match=r"HTTP/1\.1 400"):
            await asking(address, Echo.back)
        await gone.wait()


async def test_stopping_server_finishes_running_calls_and_refuses_new_ones() -> None:
    async with serving() as (address, answers, server), Channel(address) as channel:
        begun = asyncio.create_task(channel.call(Echo.wait, ask(b"begun"), timeout_s=WAIT_S))
        await until_async(lambda: answers.begun)
        stopping = asyncio.create_task(server.stop(WAIT_S))
        await until_async(lambda: server.shared.is_stopping)
        with pytest.raises(BrokerUnavailable):
            await channel.call(Echo.back, ask(), timeout_s=WAIT_S)
        assert answers.begun == 1
        answers.go.set()
        assert (await begun).held == b"begun"
        await stopping


async def test_channel_reconnects_when_its_server_is_back() -> None:
    async with serving() as (address, _, first):
        blocking, channel = BlockingChannel(address), Channel(address)
        await channel.call(Echo.back, ask(), timeout_s=WAIT_S)
        await asyncio.to_thread(blocking.call, Echo.back, ask(), timeout_s=WAIT_S)
        await first.stop(0)
    second = WireServer(Handlers({Echo: Answers()}), Shared(connections_max=5))
    await second.bind(address)
    await second.start()
    assert (await channel.call(Echo.back, ask(b"2"), timeout_s=WAIT_S)).held == b"2"
    assert (await asyncio.to_thread(blocking.call, Echo.back, ask(b"3"), timeout_s=WAIT_S)).held == b"3"
    await channel.close()
    blocking.close()
    await second.stop(0)


async def test_a_closed_channel_refuses_calls() -> None:
    async with serving() as (address, _, _):
        channel, blocking = Channel(address), BlockingChannel(address)
        await channel.close()
        await channel.close()
        blocking.close()
        with pytest.raises(BrokerUnavailable, match="the channel was closed"):
            await channel.call(Echo.back, ask(), timeout_s=WAIT_S)
        with pytest.raises(BrokerUnavailable, match="the channel was closed"):
            blocking.call(Echo.back, ask(), timeout_s=WAIT_S)


async def test_the_second_server_at_a_port_is_refused() -> None:
    async with serving() as (address, _, _):
        with pytest.raises(MisuseError, match=f"cannot listen on {address}"):
            await WireServer(Handlers({}), Shared(connections_max=5)).bind(address)


# ---- many messages


async def test_streamed_replies_arrive_in_order_and_end() -> None:
    async with serving() as (address, _, _):
        with BlockingChannel(address) as channel:
            replies = await asyncio.to_thread(
                lambda: [reply.held for reply in channel.replies(Echo.several, [ask(b"abc")], timeout_s=WAIT_S)]
            )
        assert replies == [b"a", b"b", b"c"]


async def test_call_can_have_many_requests() -> None:
    content = [bytes([letter]) * 300_000 for letter in range(5)]
    async with serving() as (address, _, _):
        with BlockingChannel(address) as channel:
            [reply] = await asyncio.to_thread(
                lambda: list(channel.replies(Echo.joined, map(ask, content), timeout_s=WAIT_S))
            )
        assert reply.held == b"".join(content)


async def test_a_stream_goes_both_ways_until_its_caller_closes_it() -> None:
    async with serving() as (address, _, server), Channel(address) as channel:
        stream = await channel.stream(Echo.each, ask(b"first"), timeout_s=WAIT_S)
        await stream.send_request(ask(bytes(500_000)))
        await stream.send_request(ask(b"last"))
        received = [await stream.receive() for _ in range(3)]
        assert [reply.held for reply in received if reply] == [b"first", bytes(500_000), b"last"]
        stream.close()
        await until_async(lambda: not any(connection.tasks() for connection in server.shared.connections))


async def test_a_stream_whose_connection_is_lost_raises() -> None:
    async with serving() as (address, _, server), Channel(address) as channel:
        stream = await channel.stream(Echo.each, ask(b"first"), timeout_s=WAIT_S)
        await stream.receive()
        for connection in list(server.shared.connections):
            connection.abort("for a test")
        with pytest.raises(OutcomeUnknown):
            await stream.receive()


async def test_stream_not_started_by_a_stopping_server_ends() -> None:
    async with serving() as (address, _, server), Channel(address) as channel:
        begun = await channel.stream(Echo.each, ask(b"first"), timeout_s=WAIT_S)
        assert await begun.receive()
        [connection] = server.shared.connections
        connection.go_away(BrokerUnavailable("for a test"))
        late = await channel.stream(Echo.each, ask(b"late"), timeout_s=WAIT_S)  # before that has arrived
        async with asyncio.timeout(WAIT_S):
            with pytest.raises(BrokerUnavailable, match="for a test"):
                await late.receive()
        await begun.send_request(ask(b"last"))
        assert (last := await begun.receive())
        assert last.held == b"last"


# ---- side by side


async def test_a_small_reply_does_not_wait_for_a_large_one() -> None:
    async with serving() as (address, _, _), Channel(address) as channel:
        ended: list[str] = []

        async def call(name: str, size: int) -> None:
            await channel.call(Echo.back, ask(bytes(size)), timeout_s=WAIT_S)
            ended.append(name)

        large = asyncio.create_task(call("large", 60_000_000))
        await asyncio.sleep(0)
        await asyncio.gather(large, *(call("small", 5) for _ in range(10)))
        assert ended == ["small"] * 10 + ["large"]


async def test_threads_can_share_a_channel() -> None:
    async with serving() as (address, _, server):
        with BlockingChannel(address) as channel, ThreadPoolExecutor(8) as threads:

            def call(number: int) -> bool:
                content = b"%d" % number * (1 if number % 10 else 50_000)
                return channel.call(Echo.back, ask(content), timeout_s=WAIT_S).held == content

            calls = [asyncio.wrap_future(threads.submit(call, number)) for number in range(800)]
            assert all(await asyncio.gather(*calls))
            assert len(server.shared.connections) == 1


async def test_thread_that_times_out_does_not_lose_replies_of_others() -> None:
    async with serving() as (address, answers, _):
        with BlockingChannel(address) as channel:

            def impatient() -> HeldReply:
                return channel.call(Echo.wait, ask(), timeout_s=0.2)

            def patient() -> bytes:
                return channel.call(Echo.wait, ask(b"patient"), timeout_s=WAIT_S).held

            waiting = asyncio.create_task(asyncio.to_thread(patient))
            await out_of_time(lambda: asyncio.to_thread(impatient))
            answers.go.set()
            assert await waiting == b"patient"


async def test_closing_a_channel_wakes_waiting_threads() -> None:
    async with serving() as (address, answers, _):
        channel = BlockingChannel(address)
        failed: list[TxmsgError] = []

        def call() -> None:
            with pytest.raises(OutcomeUnknown) as caught:
                channel.call(Echo.wait, ask(), timeout_s=WAIT_S)
            failed.append(caught.value)

        thread = threading.Thread(target=call)
        thread.start()
        await until_async(lambda: answers.begun)
        channel.close()
        await asyncio.to_thread(thread.join)
        assert len(failed) == 1


async def test_calls_above_the_limit_of_a_connection_are_refused() -> None:
    async with serving(limits=ConnectionLimits(calls=3)) as (address, answers, _), Channel(address) as channel:
        begun = [asyncio.create_task(channel.call(Echo.wait, ask(), timeout_s=WAIT_S)) for _ in range(3)]
        await until_async(lambda: answers.begun == 3)
        with pytest.raises(Overloaded, match="3 calls are under way"):
            await channel.call(Echo.wait, ask(), timeout_s=WAIT_S)
        answers.go.set()
        await asyncio.gather(*begun)


async def test_interrupted_reading_thread_hands_over_to_another() -> None:
    class Interrupted:
        def poll(self, timeout_ms: float) -> list[tuple[int, int]]:
            raise KeyboardInterrupt

    async with serving() as (address, _, _):
        with BlockingChannel(address) as channel:
            await asyncio.to_thread(channel.call, Echo.back, ask(), timeout_s=WAIT_S)
            line = channel._line
            assert line is not None
            call = line.begin_call(gives_many=False)
            readable, line._readable = line._readable, Interrupted()  # type: ignore[assignment]
            with pytest.raises(KeyboardInterrupt):
                line.receive(call, time.monotonic() + WAIT_S)
            line.end_call(call)
            line._readable = readable
            reply = await asyncio.to_thread(channel.call, Echo.back, ask(b"next"), timeout_s=WAIT_S)
            assert (reply.held, channel._line) == (b"next", line)


async def test_partially_written_frame_of_an_interrupted_thread_ends_the_connection() -> None:
    class Interrupted:
        def __init__(self, socket: socket.socket) -> None:
            self.socket = socket

        def send(self, data: bytes) -> int:
            self.socket.send(data[:5])
            raise KeyboardInterrupt

        def __getattr__(self, name: str) -> object:
            return getattr(self.socket, name)

    async with serving() as (address, answers, _):
        with BlockingChannel(address) as channel:
            await asyncio.to_thread(channel.call, Echo.back, ask(), timeout_s=WAIT_S)
            line = channel._line
            assert line is not None
            line._socket = Interrupted(line._socket)  # type: ignore[assignment]
            with pytest.raises(KeyboardInterrupt):
                channel.call(Echo.back, ask(b"half"), timeout_s=WAIT_S)
            reply = await asyncio.to_thread(channel.call, Echo.back, ask(b"next"), timeout_s=WAIT_S)
            assert (reply.held, answers.begun) == (b"next", 2)


async def test_silent_connection_is_closed_after_a_timeout() -> None:
    async with serving() as (address, _, _):
        with BlockingChannel(address) as channel:
            await asyncio.to_thread(channel.call, Echo.back, ask(), timeout_s=WAIT_S)
            line = channel._line
            await out_of_time(lambda: asyncio.to_thread(channel.call, Echo.wait, ask(), timeout_s=0.1))
            await asyncio.to_thread(channel.call, Echo.back, ask(), timeout_s=WAIT_S)
            assert channel._line is not line


async def test_refused_large_request_leaves_nothing_behind() -> None:
    limits = ConnectionLimits(arrival_s=0.2, arrival_bytes_per_s=1e12, look_s=0.05)
    async with serving(size_bytes_max=300_000, limits=limits) as (address, _, server), Channel(address) as channel:
        with pytest.raises(MessageTooLarge):
            await channel.call(Echo.back, ask(bytes(60_000_000)), timeout_s=WAIT_S)
        await channel.call(Echo.back, ask(), timeout_s=WAIT_S)
        [connection] = server.shared.connections
        assert (connection.partial, connection._partial_bytes, server.shared.arriving_bytes) == ({}, 0, 0)


@pytest.mark.parametrize("module", [blocking_module, channel_module])
async def test_silent_server_is_given_up_before_the_timeout_of_the_call(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a path that is dead without a reset."""
    for name, value_s in (("_SILENCE_S", 0.1), ("_PING_S_MAX", 0.1), ("_LOOK_S", 0.05)):
        monkeypatch.setattr(module, name, value_s, raising=False)

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting())
        said.append(await reader.read(-1))
        writer.close()
        gone.set()

    said: list[bytes] = []
    gone = asyncio.Event()
    async with answering(greet) as address:
        with pytest.raises(OutcomeUnknown, match="it answers no ping"):
            await (_by_asyncio if module is channel_module else _by_thread)(address)
        await gone.wait()
    assert [frame.kind for frame in FrameReader().feed(said[0])] == [
        WireFrameKind.HELLO,
        WireFrameKind.CALL,
        WireFrameKind.PING,
    ]


async def _by_asyncio(address: str) -> None:
    async with Channel(address) as channel:
        await channel.call(Echo.back, ask(), timeout_s=WAIT_S)


async def _by_thread(address: str) -> None:
    with BlockingChannel(address) as channel:
        await asyncio.to_thread(channel.call, Echo.back, ask(), timeout_s=WAIT_S)
