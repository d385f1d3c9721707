"""A relay before a server that counts the bytes of both directions, as they would go over a network.

It is a process of its own, so that neither the load nor the server pays for it. Speaks no protocol.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

_CHUNK_SIZE_BYTES: Final = 256 * 1024
_COUNTS_SIZE_BYTES: Final = 16
_STOP_TIMEOUT_S: Final = 30
_PROGRAM: Final = "from benchmarks.relay import main; main()"


class Relay:
    """Listens on `address` from the start; connections before `leading_to` wait."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as this
        self._file.truncate(_COUNTS_SIZE_BYTES)
        self._counts = _counts_in(self._file.fileno())

    def counts(self) -> tuple[int, int]:
        """Return the bytes so far: to the server, and from it."""
        return self._counts[0], self._counts[1]

    @contextmanager
    def leading_to(self, upstream: str) -> Iterator[None]:
        """Forward everything to HOST:PORT or a socket file. Afterwards all connections are closed."""
        fds = self._socket.fileno(), self._file.fileno()
        command = [sys.executable, "-c", _PROGRAM, upstream, *map(str, fds)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=fds) as process:
            self._socket.close()
            try:
                yield
            finally:
                process.communicate(timeout=_STOP_TIMEOUT_S)  # the end of its input ends it


def _counts_in(fd: int) -> memoryview:
    return memoryview(mmap.mmap(fd, _COUNTS_SIZE_BYTES)).cast("q")


def main() -> None:
    """Run the relay: its target, and the files of the socket and of the counts."""
    upstream, listening, counts = sys.argv[1:]
    asyncio.run(_serve(upstream, socket.socket(fileno=int(listening)), _counts_in(int(counts))))


async def _serve(upstream: str, listening: socket.socket, counts: memoryview) -> None:
    async def relay(from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        if upstream.startswith("/"):
            from_server, to_server = await asyncio.open_unix_connection(upstream)
        else:
            host, _, port = upstream.rpartition(":")
            from_server, to_server = await asyncio.open_connection(host, int(port))
        inward = asyncio.create_task(_pass_on(counts, 0, from_client, to_server))
        await _pass_on(counts, 1, from_server, to_client)
        await inward

    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), os._exit, 0)  # there is no state to clean up
    server = await asyncio.start_server(relay, sock=listening)
    await server.serve_forever()


async def _pass_on(
    counts: memoryview, direction: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    with suppress(ConnectionError):
        while chunk := await reader.read(_CHUNK_SIZE_BYTES):
            counts[direction] += len(chunk)
            writer.write(chunk)
            await writer.drain()
    writer.close()
