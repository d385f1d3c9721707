"""A gRPC client made of HTTP/2 frames, which can send anything."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from google.protobuf.wrappers_pb2 import BytesValue
from hpack import Decoder, Encoder
from hyperframe.frame import DataFrame, Frame, HeadersFrame, SettingsFrame, WindowUpdateFrame

from txmsg.rocketmq.grpc.call import GrpcCall
from txmsg.rocketmq.grpc.port import Port

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
WAIT_S = 60.0
REQUEST_SIZE_BYTES_MAX = 100_000


def message(body: bytes) -> bytes:
    """Encode a message as it goes over a stream."""
    return b"\0" + len(body).to_bytes(4, "big") + body


class Peer:
    """The client side of one connection. Its frames are bytes, to be sent in one piece or many."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._encoder, self._decoder = Encoder(), Decoder()
        self._told: defaultdict[int, dict[str, str]] = defaultdict(dict)
        """Headers of answers, by stream."""
        self.windows: dict[int, int] = {}
        """Window updates received, by stream."""

    def send(self, *parts: bytes | Frame) -> None:
        """Send the frames in one write."""
        self.writer.write(b"".join(part if isinstance(part, bytes) else part.serialize() for part in parts))

    def headers(
        self, stream_id: int, path: str = "/t/Echo", *more: tuple[str, str], changed: Mapping[str, str] = {}
    ) -> HeadersFrame:
        """Return the headers of a call. changed: those that differ from the usual ones."""
        usual = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "t", "te": "trailers"}
        usual |= {"content-type": "application/grpc", **changed}
        return HeadersFrame(stream_id, self._encoder.encode([*usual.items(), *more]), flags=["END_HEADERS"])

    def call(self, stream_id: int, body: bytes, path: str = "/t/Echo") -> bytes:
        """Return a call of one message."""
        return self.headers(stream_id, path).serialize() + data(stream_id, message(body)).serialize()

    async def next(self) -> Frame | None:
        """Return the next frame; None at the end."""
        async with asyncio.timeout(WAIT_S):
            try:
                head = await self.reader.readexactly(9)
                frame, size_bytes = Frame.parse_frame_header(memoryview(head))
                frame.parse_body(memoryview(await self.reader.readexactly(size_bytes)))
            except (asyncio.IncompleteReadError, ConnectionError):
                return None
            if isinstance(frame, WindowUpdateFrame):
                self.windows[frame.stream_id] = self.windows.get(frame.stream_id, 0) + frame.window_increment
            elif isinstance(frame, HeadersFrame):  # each changes how the next ones are read
                said = self._decoder.decode(frame.data)
                self._told[frame.stream_id] |= {str(name): str(text) for name, text in said}
            return frame

    async def frames(self, kind: type[Frame]) -> list[Any]:
        """Return all frames of this kind until the connection ends."""
        found = []
        while (frame := await self.next()) is not None:
            if isinstance(frame, kind):
                found.append(frame)
        return found

    async def first(self, kind: type[Frame]) -> Any:
        """Return the next frame of this kind."""
        while not isinstance(frame := await self.next(), kind):
            assert frame is not None, "the connection has ended"
        return frame

    async def answer(self, stream_id: int) -> tuple[bytes, dict[str, str]]:
        """Return the data of a call, and all its headers."""
        body = b""
        while True:
            frame = await self.next()
            assert frame is not None, "the connection has ended"
            if isinstance(frame, DataFrame) and frame.stream_id == stream_id:
                body += frame.data
            if frame.stream_id == stream_id and "END_STREAM" in frame.flags:
                return body, self._told[stream_id]

    async def status(self, stream_id: int) -> str:
        """Return the status with which a call of one message ends."""
        _, headers = await self.answer(stream_id)
        assert headers[":status"] == "200"
        assert headers["content-type"] == "application/grpc"
        return headers["grpc-status"]


def data(stream_id: int, body: bytes, *, ends: bool = True) -> DataFrame:
    """Return a DATA frame of a request."""
    return DataFrame(stream_id, body, flags=["END_STREAM"] if ends else [])


class Service:
    """Methods of every kind."""

    def __init__(self) -> None:
        self.begun = 0
        self.cancelled = 0
        self.opens = asyncio.Event()

    async def echo(self, call: GrpcCall) -> None:
        """Return all messages, one by one."""
        call.admitted("", is_admin=False)
        while (body := await call.read()) is not None:
            await call.write(BytesValue(value=body))

    async def hold(self, call: GrpcCall) -> None:
        """Answer when the test allows it, and read nothing before."""
        self.begun += 1
        call.admitted("", is_admin=False)
        try:
            await self.opens.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        await self.echo(call)

    async def pour(self, call: GrpcCall) -> None:
        """Write without end."""
        self.begun += 1
        call.admitted("", is_admin=False)
        try:
            while True:
                await call.write(BytesValue(value=bytes(10_000)))
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


class Served:
    """A port with a Service, and clients of it."""

    def __init__(
        self,
        *,
        calls_max: int = 1000,
        calls_of_connection_max: int = 100,
        connections_max: int = 100,
        requests_size_bytes_max: int = 10**9,
    ) -> None:
        self.service = Service()
        self.port = Port(
            {"/t/Echo": self.service.echo, "/t/Hold": self.service.hold, "/t/Pour": self.service.pour},
            connections_max=connections_max,
            calls_max=calls_max,
            calls_of_connection_max=calls_of_connection_max,
            request_size_bytes_max=REQUEST_SIZE_BYTES_MAX,
            requests_size_bytes_max=requests_size_bytes_max,
        )
        self.number = 0
        self.peers: list[Peer] = []

    async def connect(self, *settings: tuple[int, int], is_silent: bool = False) -> Peer:
        """Connect a client with these settings. is_silent: it sends nothing at all."""
        peer = Peer(*await asyncio.open_connection("127.0.0.1", self.number))
        self.peers.append(peer)
        if not is_silent:
            peer.send(PREFACE, SettingsFrame(0, dict(settings)))
        return peer


@asynccontextmanager
async def served(**bounds: int) -> AsyncIterator[Served]:
    """Listen within the block. bounds: as Served has them."""
    place = Served(**bounds)
    place.number = await place.port.start("127.0.0.1:0")
    assert place.port._looking is not None
    place.port._looking.cancel()  # tests check connections themselves
    try:
        yield place
    finally:
        for peer in place.peers:
            peer.writer.close()
        await place.port.stop(0)


def bodies(answer: bytes) -> Iterable[bytes]:
    """Return the messages of an answer."""
    while answer:
        size_bytes = int.from_bytes(answer[1:5], "big")
        yield BytesValue.FromString(answer[5 : 5 + size_bytes]).value
        answer = answer[5 + size_bytes :]
