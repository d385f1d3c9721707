"""The line between two data centres: connections through it, until it is cut. Knows nothing of what passes."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from txmsg.wire.address import host_and_port
from txmsg.wire.listening import loopback, loopback_end, stop_listening

_PIECE_BYTES: Final = 65_536


class CuttableLink:
    """Owns a thread with a loop. Other methods are for any other thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="line")
        self._servers: list[asyncio.Server] = []
        self._writers: set[asyncio.StreamWriter] = set()
        self._is_cut = False

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        asyncio.run_coroutine_threadsafe(self._close_all(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def to(self, address: str) -> str:
        """The address at the near end of the line to this one."""
        return asyncio.run_coroutine_threadsafe(self._listen(address), self._loop).result()

    def cut(self) -> None:
        """Ends all connections, and lets no new ones through."""
        asyncio.run_coroutine_threadsafe(self._set(is_cut=True), self._loop).result()

    def heal(self) -> None:
        asyncio.run_coroutine_threadsafe(self._set(is_cut=False), self._loop).result()

    # ---- on the loop

    async def _set(self, *, is_cut: bool) -> None:
        self._is_cut = is_cut
        if is_cut:
            for writer in self._writers:
                writer.transport.abort()

    async def _listen(self, address: str) -> str:
        host, port = host_and_port(address)

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._pass_on(reader, writer, host, port)

        server = await asyncio.start_server(connected, loopback_end()[1], 0)
        self._servers.append(server)
        return f"{loopback()}:{server.sockets[0].getsockname()[1]}"

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int) -> None:
        self._writers.add(writer)
        try:
            if self._is_cut:
                return
            with suppress(OSError):
                far_reader, far_writer = await asyncio.open_connection(host, port)
                self._writers.add(far_writer)
                try:
                    if not self._is_cut:  # cut while it connected
                        await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))
                finally:
                    self._writers.discard(far_writer)
                    far_writer.transport.abort()
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _close_all(self) -> None:
        await stop_listening(self._servers)
        await self._set(is_cut=True)
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until one of the two ends; then the other one does. Raises OSError."""
    try:
        while data := await reader.read(_PIECE_BYTES):
            writer.write(data)
            await writer.drain()
    finally:
        writer.transport.abort()
