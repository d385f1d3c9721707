"""A stream server for tests that leaves nothing open."""

from __future__ import annotations

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from txmsg.wire.listening import stop_listening

_WAIT_S = 60.0


@asynccontextmanager
async def answering(
    serve: Callable[[StreamReader, StreamWriter], Awaitable[None]], host: str = "127.0.0.1", port: int = 0
) -> AsyncIterator[str]:
    """Serve each connection with the function within the block, at the yielded address; then cut open ones."""
    writers: list[StreamWriter] = []
    tasks: list[asyncio.Task[None]] = []

    async def connected(reader: StreamReader, writer: StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        writers.append(writer)
        await serve(reader, writer)

    server = await asyncio.start_server(connected, host, port)
    try:
        yield f"{host}:{server.sockets[0].getsockname()[1]}"
    finally:
        await stop_listening([server])
        for writer in writers:
            writer.transport.abort()
        async with asyncio.timeout(_WAIT_S):
            for task in tasks:
                with suppress(ConnectionError):
                    await task
