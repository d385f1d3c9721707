"""For any bytes over a connection, its other end answers, refuses or closes it, and serves its other clients."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import Counter
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from tests.fuzz.conftest import Fuzz
from tests.fuzz.wild import damaged
from tests.streams import answering
from tests.waiting import until_async
from tests.wire.certificates import Authority
from tests.wire.services import Echo, ask, serving
from txmsg.errors import (
    BrokerUnavailable,
    OutcomeUnknown,
    ProtocolError,
    TxmsgError,
    Unauthenticated,
    UnknownTopic,
    error_of_code,
)
from txmsg.wire.access import failures
from txmsg.wire.access.guard import Guard
from txmsg.wire.access.permissions import PERMISSIONS
from txmsg.wire.access.snapshot import AccessSnapshot, Credential, User
from txmsg.wire.access.tokens import new_token
from txmsg.wire.blocking import BlockingChannel
from txmsg.wire.channel import Channel
from txmsg.wire.connection import greeting, read_greeting
from txmsg.wire.failures import NoAnswer
from txmsg.wire.frames import (
    LAST,
    MORE,
    PART_SIZE_BYTES,
    PREFACE,
    CallHead,
    FrameReader,
    WireFrame,
    WireFrameKind,
    call_head,
    frame_of,
    parts_of,
    read_call_head,
)
from txmsg.wire.method import methods_of
from txmsg.wire.shared import ConnectionLimits
from txmsg.wire.tls import client_context
from txmsg.wire.v1.txmsg_pb2 import HeldReply, HeldRequest
from txmsg.wire.v1.wire_pb2 import CallError, Greeting

T = TypeVar("T")

WAIT_S = 60.0
_SETTINGS = settings(max_examples=50, suppress_health_check=list(HealthCheck))
_TEXT_SIZE_MAX = 1000
_TLS_ALERT = 21
_GROWTH_BYTES_MAX = 200 * 1024 * 1024
_MARK = b"a ping that no example holds"
_UINT8 = st.integers(0, 255)
_UINT32 = st.integers(0, 2**32 - 1)
_FLAGS = st.sampled_from([0, LAST, LAST, MORE, MORE | LAST, 255])
_CALLS = st.sampled_from([0, 1, 1, 2, 3, 2**32 - 1])
"""Few numbers, so that frames meet existing calls."""
_SIZES = st.sampled_from([0, 1, 300, PART_SIZE_BYTES - 1, PART_SIZE_BYTES])
_PAYLOADS = st.binary(max_size=40) | _SIZES.map(bytes)
_METHODS = [method for method in methods_of(Echo).values() if method is not Echo.fail]  # which is to have a traceback
_CUTS = st.lists(st.integers(0, 2**20), max_size=6)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """Split these bytes into pieces, some of which may be empty."""
    places = sorted(place % (len(data) + 1) for place in places)
    return [data[begin:end] for begin, end in zip([0, *places], [*places, len(data)], strict=True)]


# ---- frames alone


def test_frames_do_not_depend_on_how_their_stream_is_split(fuzz: Fuzz) -> None:
    frames = st.lists(st.builds(WireFrame, _UINT8, _UINT8, _UINT32, _PAYLOADS), max_size=6)

    @_SETTINGS
    @given(frames, _CUTS)
    def streams(sent: list[WireFrame], places: list[int]) -> None:
        sent = [WireFrame(WireFrameKind.HELLO, 0, 0, b""), *sent]
        data = PREFACE + b"".join(frame_of(*frame) for frame in sent)
        reader = FrameReader()
        assert [frame for piece in cut(data, places) for frame in reader.feed(piece)] == sent
        assert reader.is_between_frames
        if data != PREFACE:
            begun = FrameReader()
            assert begun.feed(data[:-1]) == sent[:-1]
            assert not begun.is_between_frames

    fuzz(streams)


def test_garbage_is_frames_or_a_protocol_error_however_it_is_split(fuzz: Fuzz) -> None:
    good = st.lists(st.builds(frame_of, _UINT8, _UINT8, _UINT32, _PAYLOADS), max_size=4).map(b"".join)
    behind = st.one_of(good.flatmap(damaged), st.binary(max_size=200))

    @_SETTINGS
    @given(st.one_of(behind.map(lambda data: PREFACE + data), behind, st.just(PREFACE).flatmap(damaged)), _CUTS)
    @example(b"GET / HTTP/1.1\r\n\r\n", [1, 2])
    @example(PREFACE[:-1], [0])
    @example(PREFACE + (PART_SIZE_BYTES + 1).to_bytes(4) + bytes(6), [12])
    def garbage(data: bytes, places: list[int]) -> None:
        frames, error = read_all([data])
        again, error_again = read_all(cut(data, places))
        assert (error is None) == (error_again is None)
        assert len(str(error)) <= _TEXT_SIZE_MAX
        if error is None:
            assert frames == again
        # Refused input yields fewer frames in one piece than split: it is refused with everything in its piece.
        assert again[: len(frames)] == frames
        kept = b"".join(frame_of(*frame) for frame in again)
        assert (PREFACE + kept).startswith(data[: len(PREFACE) + len(kept)]) or not kept
        assert all(len(frame.payload) <= PART_SIZE_BYTES for frame in again)

    fuzz(garbage)


def read_all(pieces: list[bytes]) -> tuple[list[WireFrame], ProtocolError | None]:
    """Return the frames of a stream, and the error in the bytes after them."""
    reader, frames = FrameReader(), []
    for piece in pieces:
        try:
            frames += reader.feed(piece)
        except ProtocolError as exc:
            return frames, exc
    return frames, None


def test_message_equals_its_joined_parts(fuzz: Fuzz) -> None:
    sizes = st.integers(0, 3 * PART_SIZE_BYTES) | st.sampled_from(
        [n * PART_SIZE_BYTES + d for n in (1, 2) for d in (-1, 0, 1)]
    )

    @_SETTINGS
    @given(_UINT8, st.sampled_from([0, LAST]), _UINT32, sizes)
    def messages(kind: int, flags: int, call: int, size: int) -> None:
        message = (bytes(range(251)) * (size // 251 + 1))[:size]
        [_, *frames], error = read_all([PREFACE + frame_of(WireFrameKind.HELLO), *parts_of(kind, flags, call, message)])
        assert error is None
        assert b"".join(frame.payload for frame in frames) == message
        assert {(frame.kind, frame.call) for frame in frames} == {(kind, call)}
        assert [frame.flags for frame in frames] == [flags | MORE] * (len(frames) - 1) + [flags]

    fuzz(messages)


def test_heads_and_greetings_are_parsed_or_refused(fuzz: Fuzz) -> None:
    heads = st.builds(call_head, st.binary(max_size=255), st.integers(0, 2**40))
    greetings = st.builds(
        Greeting, versions=st.lists(_UINT32, max_size=4), release=st.text(st.characters(exclude_categories=["Cs"]))
    ).map(Greeting.SerializeToString)

    @_SETTINGS
    @given(heads | heads.flatmap(damaged) | st.binary(), greetings | greetings.flatmap(damaged) | st.binary(), _UINT8)
    @example(call_head(b"", 0), b"", WireFrameKind.HELLO)
    def openings(head: bytes, hello: bytes, kind: int) -> None:
        with suppress(ProtocolError):
            read: CallHead = read_call_head(head)
            assert read.method.isascii()
            assert call_head(read.method.encode("ascii"), read.timeout_ms) == head[: read.size_bytes]
        with suppress(ProtocolError):
            assert 1 in read_greeting(WireFrame(kind, 0, 0, hello)).versions
            assert kind == WireFrameKind.HELLO

    fuzz(openings)


# ---- a server and its clients


@st.composite
def _of_a_client(draw: DrawFn) -> bytes:
    """Frames as clients send them, or with an invalid kind, call or payload."""
    kind = draw(
        st.sampled_from(
            [
                WireFrameKind.CALL,
                WireFrameKind.CALL,
                WireFrameKind.CALL,
                WireFrameKind.PUSH,
                WireFrameKind.PUSH,
                *WireFrameKind,
            ]
        )
        | _UINT8
    )
    flags, call = draw(_FLAGS), draw(_CALLS)
    request = draw(st.builds(HeldRequest, transaction_ids=_PAYLOADS)).SerializeToString()
    if kind == WireFrameKind.CALL and draw(st.integers(0, 9)):
        names = st.sampled_from([method.wire_name for method in _METHODS]) | st.binary(max_size=20)
        request = call_head(draw(names), draw(st.sampled_from([0, 0, 1, 60_000, 2**32 - 1]))) + request
    elif draw(st.booleans()):
        request = draw(_PAYLOADS)
    return b"".join(parts_of(kind, flags, call, request))


@st.composite
def _streams(draw: DrawFn, frames: SearchStrategy[bytes]) -> tuple[bytes, bytes]:
    """Streams: mostly a greeting with frames after it; one in three is damaged."""
    first = draw(damaged(greeting())) if draw(st.integers(0, 9)) == 0 else greeting(blocking=draw(st.booleans()))
    rest = b"".join(draw(st.lists(frames, max_size=8)))
    return first, draw(damaged(rest)) if draw(st.integers(0, 2)) == 0 else rest


class _Loop:
    """An event loop run step by step by a test that is not a coroutine."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self._runner = runner
        self.failures: list[dict[str, Any]] = []
        """Errors in callbacks and tasks that no awaiter gets."""
        runner.get_loop().set_exception_handler(lambda _, context: self.failures.append(context))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(asyncio.wait_for(work, WAIT_S))


@contextmanager
def _loop(caplog: pytest.LogCaptureFixture) -> Iterator[_Loop]:
    """A loop in which nothing may fail or log a failure."""
    with asyncio.Runner() as runner:
        loop = _Loop(runner)
        yield loop
    assert loop.failures == []
    records = [record for record in caplog.records if record.levelno >= logging.ERROR or record.exc_info]
    assert [record.getMessage() for record in records] == []
    assert all(record.getMessage().isprintable() for record in caplog.records)


@pytest.mark.filterwarnings("ignore:Generating overly large repr")
def test_random_bytes_do_not_harm_a_server_or_its_other_clients(fuzz: Fuzz, caplog: pytest.LogCaptureFixture) -> None:
    with _loop(caplog) as loop:
        stack = AsyncExitStack()
        address, _, server = loop.run(stack.enter_async_context(serving()))
        neighbour = loop.run(stack.enter_async_context(Channel(address)))
        outcomes: list[str] = []

        async def send(data: bytes, places: list[int]) -> None:
            outcomes.append(await _outcome(address, data, places))
            assert (await neighbour.call(Echo.back, ask(b"good"), timeout_s=WAIT_S)).held == b"good"

        @_SETTINGS
        @given(_streams(_of_a_client()).map(b"".join) | st.binary(max_size=100), _CUTS)
        @example(b"GET / HTTP/1.1\r\n\r\n", [])
        @example(greeting() + b"".join(frame_of(WireFrameKind.CALL, MORE, call, b"x") for call in range(2000)), [])
        @example(greeting() + frame_of(WireFrameKind.CALL, LAST, 1, call_head(b"Echo/Back", 0) + b"\x0a\x05x"), [])
        @example(greeting() + frame_of(WireFrameKind.CALL, LAST, 1, b"\x09"), [])
        @example(greeting() + frame_of(WireFrameKind.CALL, LAST, 1, b"\x09\0\0\0\0Echo"), [])
        def streams(data: bytes, places: list[int]) -> None:
            loop.run(send(data, places))

        fuzz(streams)
        loop.run(until_async(lambda: len(server.shared.connections) == 1))
        assert [task for connection in server.shared.connections for task in connection.tasks()] == []
        assert set(outcomes) == {"answered", "closed"}, "all kinds of streams are among the examples"
        loop.run(stack.aclose())


async def _outcome(address: str, data: bytes, places: list[int]) -> str:
    """Return the state of a connection after these bytes: it still answers, must be closed, or may be closed."""
    frames, wrong = read_all([data])
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        with suppress(ConnectionError):  # it may be closed over it
            for piece in cut(data, places):
                writer.write(piece)
                await writer.drain()
        is_whole = wrong is None and data.startswith(PREFACE) and _is_between_frames(data)
        came, is_answered = FrameReader(), False
        answers: list[WireFrame] = []
        with suppress(ConnectionError):
            if is_whole:
                writer.write(frame_of(WireFrameKind.PING, 0, 0, _MARK))
            elif wrong is None:
                writer.write_eof()
            while not is_answered and (more := await reader.read(65536)):
                answers += came.feed(more)
                is_answered = any(frame.kind == WireFrameKind.PING and frame.payload == _MARK for frame in answers)
        assert is_whole or not is_answered
        _check(answers)
        if is_answered:
            read_greeting(frames[0])  # no other token is accepted
        return "answered" if is_answered else "closed"
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


@st.composite
def _of_a_stranger(draw: DrawFn) -> bytes:
    """A greeting with an unknown token or none, and any frames of a client after it; some are damaged."""
    token = draw(st.sampled_from(["", "x", new_token().text]) | st.text(st.characters(codec="utf-8"), max_size=200))
    hello = greeting(blocking=draw(st.booleans()), token=token)
    data = hello + b"".join(draw(st.lists(_of_a_client(), max_size=8)))
    return draw(damaged(data)) if draw(st.integers(0, 2)) == 0 else data


@pytest.mark.filterwarnings("ignore:Generating overly large repr")
def test_unauthenticated_client_gets_only_refusals_from_a_server_with_tls(
    fuzz: Fuzz, caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures, "DELAY_S_MAX", 0.001)  # else a server answers few of them
    monkeypatch.setitem(PERMISSIONS, Echo.back.name, ())
    token, guard, authority = new_token(), Guard(), Authority(tmp_path)
    known = Credential(id=token.id, user="anna", secret_sha256=token.secret_sha256)
    guard.use_snapshot(AccessSnapshot(users={"anna": User(name="anna")}, credentials={token.id: known}))
    context = client_context(str(authority.file))
    assert context is not None
    limits = ConnectionLimits(greeting_s=0.5, look_s=0.02)
    process = psutil.Process()
    with _loop(caplog) as loop:
        stack = AsyncExitStack()
        served = serving(tls=authority.server(), guard=guard, limits=limits)
        address, answers, server = loop.run(stack.enter_async_context(served))
        neighbour = loop.run(stack.enter_async_context(Channel(address, tls=context, token=token.text)))
        outcomes: Counter[str] = Counter()

        async def send(data: bytes, places: list[int], is_encrypted: bool) -> None:
            guard.confirm()
            outcomes[await _refusal(address, data, places, context if is_encrypted else None)] += 1
            served_before = answers.begun
            assert (await neighbour.call(Echo.back, ask(b"good"), timeout_s=WAIT_S)).held == b"good"
            assert answers.begun == served_before + 1
            assert sum(outcomes.values()) == answers.begun, "no stranger's call was begun"

        @_SETTINGS
        @given(_of_a_stranger() | st.binary(max_size=100), _CUTS, st.integers(0, 4).map(bool))
        @example(greeting(), [], True)
        @example(
            greeting(token=new_token().text) + frame_of(WireFrameKind.CALL, LAST, 1, call_head(b"Echo/Back", 0)),
            [],
            True,
        )
        @example(
            greeting() + b"".join(parts_of(WireFrameKind.CALL, LAST, 1, call_head(b"Echo/Back", 0) + bytes(2**21))),
            [],
            True,
        )
        @example(PREFACE + bytes([255] * 200), [], True)
        @example(b"", [], True)
        @example(greeting(), [], False)
        @example(b"GET / HTTP/1.1\r\n\r\n", [], False)
        def strangers(data: bytes, places: list[int], is_encrypted: bool) -> None:
            loop.run(send(data, places, is_encrypted))

        strangers()
        caplog.clear()  # log records are not the server's memory
        before_bytes = process.memory_info().rss
        fuzz(strangers)
        growth_bytes = process.memory_info().rss - before_bytes
        print(f"\n{outcomes}, grew by {growth_bytes} bytes")
        loop.run(until_async(lambda: len(server.shared.connections) == 1))
        assert (server.shared.arriving_bytes, server.shared.refusing) == (0, 0)
        assert len(server.shared.failures) < 1000
        assert growth_bytes < _GROWTH_BYTES_MAX
        assert set(outcomes) == {"refused", "closed"}, "all kinds of streams are among the examples"
        loop.run(stack.aclose())


async def _refusal(address: str, data: bytes, places: list[int], context: ssl.SSLContext | None) -> str:
    """Check a server's answer to an unauthenticated client: a greeting and a GOAWAY with a reason, or a close."""
    host, _, port = address.rpartition(":")
    try:
        reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
    except ConnectionResetError:  # on a busy machine a handshake takes longer than a greeting may
        return "closed"
    try:
        said = FrameReader()
        came: list[WireFrame] = []
        with suppress(ConnectionError, ssl.SSLError):
            for piece in cut(data, places):
                writer.write(piece)
                await writer.drain()
            while not any(frame.kind == WireFrameKind.GOAWAY for frame in came) and (more := await reader.read(65536)):
                if context is None:
                    assert more[0] == _TLS_ALERT, "a server with TLS says nothing without it"
                else:
                    came += said.feed(more)
        if not came:
            return "closed"
        read_greeting(came[0])
        assert {frame.kind for frame in came[1:]} <= {WireFrameKind.GOAWAY, WireFrameKind.PING}
        told = [CallError.FromString(frame.payload) for frame in came[1:] if frame.kind == WireFrameKind.GOAWAY]
        assert {each.code for each in told} <= {Unauthenticated.code, BrokerUnavailable.code}
        return "refused" if told else "closed"
    finally:
        writer.transport.abort()


def _is_between_frames(data: bytes) -> bool:
    reader = FrameReader()
    reader.feed(data)
    return reader.is_between_frames


def _check(answers: list[WireFrame]) -> None:
    """Check a server's bytes: a greeting, then only frames that docs/protocol.md allows."""
    if not answers:
        return  # it was reset before anything was read
    read_greeting(answers[0])
    in_parts = {(kind, call) for kind, flags, call, _ in answers if flags & MORE}
    for kind, _, call, payload in answers[1:]:
        assert kind in {WireFrameKind.REPLY, WireFrameKind.ERROR, WireFrameKind.PUSH, WireFrameKind.PING}
        if kind == WireFrameKind.ERROR:
            told = CallError.FromString(payload)
            assert type(error_of_code(told.code, "")) is not TxmsgError, f"call {call} is refused by {told.code!r}"
            assert 0 < len(told.text) <= _TEXT_SIZE_MAX
        elif kind != WireFrameKind.PING and (kind, call) not in in_parts:
            HeldReply.FromString(payload)


# ---- a client and its server


@st.composite
def _of_a_server(draw: DrawFn) -> bytes:
    """Frames as servers send them to a client's first call, or invalid ones."""
    kind = draw(
        st.sampled_from(
            [
                WireFrameKind.REPLY,
                WireFrameKind.ERROR,
                WireFrameKind.PUSH,
                WireFrameKind.PING,
                WireFrameKind.GOAWAY,
                *WireFrameKind,
            ]
        )
        | _UINT8
    )
    flags, call = draw(st.sampled_from([0, 0, 0, MORE, LAST, 255])), draw(_CALLS)
    payloads: dict[int, SearchStrategy[Any]] = {
        WireFrameKind.ERROR: st.builds(
            CallError, code=st.sampled_from(["", "overloaded", "unknown_topic", "?"]), text=st.just("t")
        ),
        WireFrameKind.REPLY: st.builds(HeldReply, held=_PAYLOADS),
    }
    message = draw(payloads.get(kind, payloads[WireFrameKind.REPLY])).SerializeToString()
    return b"".join(parts_of(kind, flags, call, message if draw(st.integers(0, 4)) else draw(_PAYLOADS)))


@pytest.mark.filterwarnings("ignore:Generating overly large repr")
def test_random_bytes_of_a_server_raise_txmsg_errors_in_clients(fuzz: Fuzz, caplog: pytest.LogCaptureFixture) -> None:
    with _loop(caplog) as loop:
        outcomes: set[str] = set()

        @_SETTINGS
        @given(_streams(_of_a_server()), _CUTS, st.booleans())
        @example((b"HTTP/1.1 400 Bad Request\r\n\r\n", b""), [], False)
        @example((greeting(), b""), [], True)
        @example((greeting(), frame_of(WireFrameKind.REPLY, 0, 1, HeldReply(held=b"x").SerializeToString())), [], True)
        @example(
            (greeting(), frame_of(WireFrameKind.ERROR, 0, 1, CallError(code="unknown_topic").SerializeToString())),
            [],
            True,
        )
        @example((greeting(), frame_of(WireFrameKind.REPLY, 0, 1, b"\x0a\x05x")), [], True)
        @example((greeting(), frame_of(WireFrameKind.PUSH, 0, 1, b"\x0a\x05x")), [], True)
        @example(
            (greeting(), frame_of(WireFrameKind.PUSH, 0, 1, b"") + 2 * frame_of(WireFrameKind.REPLY, 0, 1, b"")),
            [],
            True,
        )
        @example((greeting(), frame_of(WireFrameKind.ERROR, 0, 1, b"\xff")), [], True)
        @example((greeting(), frame_of(WireFrameKind.GOAWAY, 0, 0, b"")), [], True)
        def servers(said: tuple[bytes, bytes], places: list[int], waits: bool) -> None:
            outcomes.update(loop.run(_ask_wild(*said, places, waits=waits)))

        fuzz(servers)
        assert outcomes >= {"HeldReply", UnknownTopic.__name__, BrokerUnavailable.__name__, OutcomeUnknown.__name__}


class _WildServer:
    """Sends the first bytes, waits for a call if asked to and if one can arrive, sends the rest, and closes."""

    def __init__(self, first: bytes, rest: list[bytes], *, waits: bool) -> None:
        frames, error = read_all([first])
        self.calls = 0
        """That have come."""
        self.says_that_it_goes = any(frame.kind == WireFrameKind.GOAWAY for frame in read_all([first, *rest])[0])
        self._first = first
        self._rest = rest
        self._waits = waits and error is None and first.startswith(greeting()[: len(PREFACE) + 4]) and len(frames) == 1

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came = FrameReader()
        with suppress(ConnectionError):
            writer.write(self._first)
            before = self.calls
            while self._waits and self.calls == before and (more := await reader.read(65536)):
                self.calls += any(frame.kind == WireFrameKind.CALL for frame in came.feed(more))
            for piece in self._rest:
                writer.write(piece)
                await writer.drain()
        writer.close()


async def _ask_wild(first: bytes, rest: bytes, places: list[int], *, waits: bool) -> set[str]:
    """Make calls of each kind of client to such a server and return how they end."""
    wild = _WildServer(first, cut(rest, places), waits=waits)
    outcomes = set()
    async with answering(wild.answer) as address:
        for ask_server in (_call, _call_many, _call_of_thread, _call_many_of_thread):
            before = wild.calls
            outcome = await _reply_or_error(ask_server(address))
            outcomes.add(type(outcome).__name__)
            if not isinstance(outcome, TxmsgError):
                continue
            assert str(outcome)
            assert str(outcome).isprintable()
            if isinstance(outcome.__cause__, NoAnswer):
                assert type(outcome) in {BrokerUnavailable, OutcomeUnknown}
                if isinstance(outcome, BrokerUnavailable) and wild.calls > before:
                    assert wild.says_that_it_goes, "a call that has come may have been carried out"
    return outcomes


async def _reply_or_error(call: Coroutine[Any, Any, object]) -> object:
    try:
        return await call
    except TxmsgError as exc:
        return exc


async def _call(address: str) -> object:
    async with Channel(address) as channel:
        return await channel.call(Echo.back, ask(), timeout_s=WAIT_S)


async def _call_many(address: str) -> object:
    async with Channel(address) as channel:
        stream = await channel.stream(Echo.each, ask(), timeout_s=WAIT_S)
        try:
            while (reply := await stream.receive()) is not None:
                await stream.send_request(ask())
        finally:
            stream.close()
        return reply


async def _call_of_thread(address: str) -> object:
    def call() -> object:
        with BlockingChannel(address) as channel:
            return channel.call(Echo.back, ask(), timeout_s=WAIT_S)

    return await asyncio.to_thread(call)


async def _call_many_of_thread(address: str) -> object:
    def call() -> object:
        with BlockingChannel(address) as channel:
            return list(channel.replies(Echo.several, [ask()], timeout_s=WAIT_S))

    return await asyncio.to_thread(call)
