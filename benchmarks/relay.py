"""A relay before a server that counts the bytes of both directions: what would go over the network.

It is a process of its own, so that neither the load nor the server pays for it. Speaks no protocol.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

__all__ = ["Relay"]

_CHUNK_SIZE_BYTES: Final = 256 * 1024
_STOP_TIMEOUT_S: Final = 30


class Relay:
    """Listens on `address` from the beginning; who connects before `leading_to` waits."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self._fork = multiprocessing.get_context("fork")  # so it must be led somewhere before threads are started
        self._bytes = self._fork.Array("q", 2, lock=False)

    def counts(self) -> tuple[int, int]:
        """Bytes so far: to the server, and from it."""
        return self._bytes[0], self._bytes[1]

    @contextmanager
    def leading_to(self, upstream: str) -> Iterator[None]:
        """Passes everything on to HOST:PORT, or to the socket file of this path. Afterwards all is cut off."""
        process = self._fork.Process(target=self._run, args=(upstream,), daemon=True)
        process.start()
        self._socket.close()
        try:
            yield
        finally:
            process.terminate()
            process.join(_STOP_TIMEOUT_S)

    def _run(self, upstream: str) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the benchmark, which ends this
        asyncio.run(self._serve(upstream))

    async def _serve(self, upstream: str) -> None:
        async def relay(from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
            if upstream.startswith("/"):
                from_server, to_server = await asyncio.open_unix_connection(upstream)
            else:
                host, _, port = upstream.rpartition(":")
                from_server, to_server = await asyncio.open_connection(host, int(port))
            inward = asyncio.create_task(self._pass_on(0, from_client, to_server))
            await self._pass_on(1, from_server, to_client)
            await inward

        server = await asyncio.start_server(relay, sock=self._socket)
        await server.serve_forever()

    async def _pass_on(self, direction: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while chunk := await reader.read(_CHUNK_SIZE_BYTES):
                self._bytes[direction] += len(chunk)
                writer.write(chunk)
                await writer.drain()
        with suppress(ConnectionError, OSError):
            writer.close()
