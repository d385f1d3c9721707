"""Proxies between processes, whose links fail as networks do. They know nothing of the data.

    with Network() as network:
        link = network.link(target)      # target: (host, port), or the path of a Unix socket
        connect(link.port)
        link.cut(Cut.SILENT)
        link.heal()

Everything runs in one thread with an event loop of its own; the methods of a link may be called from any thread.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.chaos.plan import Cut
from txmsg.wire.listening import stop_listening

Target = tuple[str, int] | Path

_PIECE_BYTES = 65_536
SLOW_S = 0.1
"""Delay of each piece on a slow link."""
_WAIT_S = 60.0


class Network:
    """Owns the thread and all links made by it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="network")
        self._links: list[Link] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        async def end() -> None:
            for link in self._links:
                await link.end()
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(_WAIT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_WAIT_S)
        self._loop.close()

    def link(self, target: Target) -> Link:
        """Create a listening link."""
        link = Link(target, self._loop)
        asyncio.run_coroutine_threadsafe(link.listen(), self._loop).result(_WAIT_S)
        self._links.append(link)
        return link


@dataclass(slots=True, eq=False)
class _Connection:
    client: asyncio.StreamWriter
    server: asyncio.StreamWriter | None = None
    closed_to_server: bool = False
    """Bytes from the client are dropped from here on; the server has been sent the end of the stream."""

    def reset(self) -> None:
        for writer in (self.client, self.server):
            if writer is not None:
                writer.transport.abort()


@dataclass(slots=True, eq=False)
class Link:
    """Listens at `port` of 127.0.0.1 and forwards everything to `target` unless it is cut."""

    target: Target
    loop: asyncio.AbstractEventLoop
    port: int = 0
    _cut: Cut | None = None
    _server: asyncio.Server | None = None
    _connections: set[_Connection] = field(default_factory=set)
    _whole: asyncio.Event = field(default_factory=asyncio.Event)
    """Set unless all data has to wait."""

    def cut(self, cut: Cut) -> None:
        """Fail in this way until `heal`."""
        self._on_loop(lambda: self._fail(cut))

    def heal(self) -> None:
        """Serve new connections again; silent ones continue or are reset, depending on the cut."""
        self._on_loop(self._mend)

    def move(self, target: Target) -> None:
        """Send new connections to another target; existing ones are reset."""

        def act() -> None:
            self.target = target
            self._reset(self._connections)

        self._on_loop(act)

    def _on_loop(self, act: Callable[[], None]) -> None:
        async def call() -> None:
            act()

        asyncio.run_coroutine_threadsafe(call(), self.loop).result(_WAIT_S)

    # ---- on the loop

    async def listen(self) -> None:
        self._whole.set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def end(self) -> None:
        assert self._server is not None
        await stop_listening([self._server])
        self._reset(self._connections)

    def _fail(self, cut: Cut) -> None:
        self._cut = cut
        match cut:
            case Cut.RESET:
                self._reset(self._connections)
            case Cut.SOME_RESET:
                self._reset({each for each in self._connections if random.random() < 0.5})
            case Cut.SILENT | Cut.LOST:
                self._whole.clear()
            case Cut.HALF_CLOSED:
                for each in self._connections:
                    each.closed_to_server = True
                    if each.server is not None and each.server.can_write_eof():
                        with suppress(OSError):  # it is closed already
                            each.server.write_eof()
            case Cut.REPLIES_LOST | Cut.SLOW:
                pass

    def _mend(self) -> None:
        cut, self._cut = self._cut, None
        if cut in (Cut.LOST, Cut.REPLIES_LOST):
            self._reset(self._connections)
        elif cut is Cut.HALF_CLOSED:
            self._reset({each for each in self._connections if each.closed_to_server})
        self._whole.set()

    def _reset(self, connections: set[_Connection]) -> None:
        for each in list(connections):
            each.reset()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = _Connection(writer)
        if self._cut is Cut.RESET:
            connection.reset()
            return
        self._connections.add(connection)
        try:
            await self._whole.wait()
            replies, connection.server = await _open(self.target)
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump(connection, reader, connection.server, to_server=True))
                pumps.create_task(self._pump(connection, replies, writer, to_server=False))
        except* OSError:
            pass  # either side has gone
        finally:
            connection.reset()
            self._connections.discard(connection)

    async def _pump(
        self, connection: _Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, to_server: bool
    ) -> None:
        while piece := await reader.read(_PIECE_BYTES):
            if self._cut is Cut.SLOW:
                await asyncio.sleep(SLOW_S)
            await self._whole.wait()
            is_lost = connection.closed_to_server if to_server else self._cut is Cut.REPLIES_LOST
            if not is_lost:
                writer.write(piece)
                await writer.drain()
        raise ConnectionResetError("one side is done: so is the other")


async def _open(target: Target) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if isinstance(target, Path):
        return await asyncio.open_unix_connection(target)
    return await asyncio.open_connection(*target)
