"""What goes over the wire, in words: a relay before a server, which notes each frame that it passes on. For operators.

Belongs to one loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Final

from google.protobuf.message import DecodeError, Message
from google.protobuf.text_format import MessageToString

from txmsg.errors import ProtocolError, printable
from txmsg.wire import v1
from txmsg.wire.address import UNIX, host_and_port
from txmsg.wire.frames import LAST, MORE, Frame, FrameReader, Kind, read_call_head
from txmsg.wire.method import Method, methods_of
from txmsg.wire.v1.wire_pb2 import CallError, Greeting

_READ_SIZE_BYTES: Final = 256 * 1024
_MODULES: Final = [
    import_module(f"{v1.__name__}.{found.name}") for found in iter_modules(v1.__path__) if found.name.endswith("_rpc")
]
METHODS: Final[dict[str, Method[Any, Any]]] = {
    method.name: method
    for module in _MODULES
    for service in vars(module).values()
    if isinstance(service, type)
    for method in methods_of(service).values()
}
"""All methods there are, by name."""


class Words:
    """Says what the frames of one connection mean. Knows the method of each call that it has seen begin."""

    def __init__(self, length_max: int) -> None:
        self._length_max = length_max
        self._methods: dict[int, Method[Any, Any] | None] = {}
        self._parts: dict[tuple[bool, int, int], list[bytes]] = {}

    def of(self, frame: Frame, *, is_client: bool) -> str:
        """One line without its end; empty while a message has not come whole."""
        kind, flags, call, payload = frame
        parts = self._parts.setdefault((is_client, kind, call), [])
        parts.append(payload)
        if flags & MORE:
            return ""
        message = b"".join(self._parts.pop((is_client, kind, call)))
        name = Kind(kind).name if kind in set(Kind) else f"kind {kind}"
        words = [name, *(["last"] if flags & LAST else []), *([f"#{call}"] if call else []), f"{len(message)} B"]
        return " ".join([*words, self._content(kind, call, message, is_client=is_client)]).rstrip()

    def _content(self, kind: int, call: int, message: bytes, *, is_client: bool) -> str:
        try:
            if kind == Kind.CALL:
                head = read_call_head(message)
                method = self._methods[call] = METHODS.get(head.method)
                content = self._text(None if method is None else method.request, message[head.size_bytes :])
                return f"{head.method} within {head.timeout_ms} ms {content}"
            if kind in {Kind.REPLY, Kind.PUSH}:
                method = self._methods.get(call)
                if method is None:
                    return ""
                return self._text(method.request if is_client else method.reply, message)
            if kind in {Kind.ERROR, Kind.GOAWAY}:
                return self._text(CallError, message)
            return self._text(Greeting, message) if kind == Kind.HELLO else ""
        except (ProtocolError, DecodeError) as exc:
            return f"cannot be read: {exc}"
        finally:
            if kind in {Kind.REPLY, Kind.ERROR, Kind.CANCEL}:  # a call that is cancelled is not answered
                self._methods.pop(call, None)

    def _text(self, kind: type[Any] | None, message: bytes) -> str:
        if kind is None:
            return ""
        read = kind.FromString(message)
        redact(read)
        text = printable(MessageToString(read, as_one_line=True))
        return text if len(text) <= self._length_max else f"{text[: self._length_max]} ..."


def redact(message: Message) -> None:
    """Hides tokens and keys, wherever they are in it."""
    for field, value in message.ListFields():
        if field.GetOptions().debug_redact:
            hidden = "***" if field.type == field.TYPE_STRING else b"***"
            if isinstance(value, str | bytes):
                setattr(message, field.name, hidden)
            else:
                value[:] = [hidden] * len(value)
        elif field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for each in [value] if isinstance(value, Message) else value:
                redact(each)


class Capture:
    """A relay: passes on what clients and the server at `target` say, and gives each frame as a line to `note`."""

    def __init__(self, target: str, note: Callable[[str], None], *, length_max: int) -> None:
        self._target = target
        self._note = note
        self._length_max = length_max
        self._count = 0

    async def relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves one client until one side ends."""
        self._count += 1
        number = self._count
        self._say(number, "-- connected")
        try:
            to_server, server = await self._connected()
        except OSError as exc:
            self._say(number, f"-- {self._target} cannot be reached: {exc}")
            writer.close()
            return
        words = Words(self._length_max)
        passing = [
            asyncio.create_task(self._pass(number, ">>", words, reader, server)),
            asyncio.create_task(self._pass(number, "<<", words, to_server, writer)),
        ]
        try:
            await asyncio.wait(passing, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in passing:
                task.cancel()
            await asyncio.gather(*passing, return_exceptions=True)
            for side in (writer, server):
                side.close()
                with suppress(OSError):
                    await side.wait_closed()
            self._say(number, "-- closed")

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._target.startswith(UNIX):
            return await asyncio.open_unix_connection(self._target.removeprefix(UNIX))
        return await asyncio.open_connection(*host_and_port(self._target))

    async def _pass(
        self, number: int, arrow: str, words: Words, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        frames: FrameReader | None = FrameReader()
        with suppress(ConnectionError):
            while data := await reader.read(_READ_SIZE_BYTES):
                try:
                    for frame in frames.feed(data) if frames is not None else ():
                        if line := words.of(frame, is_client=arrow == ">>"):
                            self._say(number, f"{arrow} {line}")
                except ProtocolError as exc:
                    frames = None
                    self._say(number, f"{arrow} unreadable, passed on without words: {printable(str(exc))}")
                writer.write(data)
                await writer.drain()

    def _say(self, number: int, line: str) -> None:
        self._note(f"{datetime.now(UTC):%H:%M:%S.%f} {number} {line}")
