"""Runs statements, prepared once per session or not, without the driver's cursor. Knows no statement of its own.

For each execution psycopg makes a cursor, converts each parameter and drives generators: more than half of what the
batch procedure costs a broker. Here parameters come as bytes, and callbacks of the event loop call libpq.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import psycopg
from psycopg import AsyncConnection
from psycopg.abc import Transformer as BaseTransformer
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus, Format
from psycopg.pq.abc import PGresult

_LOOK_S: Final = 0.2
"""How often an answer is looked for without being told of it: uvloop tells once that a socket has an error, and then
nothing more, also if what the server said last was not read to its end."""


@dataclass(frozen=True)
class Statement:
    """An SQL statement with parameters $1, $2, ... of the types with these oids. Sessions know it by its name."""

    name: bytes
    sql: bytes
    parameter_oids: tuple[int, ...]

    @cached_property
    def formats(self) -> tuple[Format, ...]:
        """Those of the parameters."""
        return (Format.BINARY,) * len(self.parameter_oids)


class PreparedConnection(AsyncConnection[Any]):
    """A connection in autocommit that can also run prepared statements.

    With prepare_threshold None, because the driver deallocates all statements of a session when it empties its cache.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._row_loaders: dict[bytes, BaseTransformer] = {}
        """Of the statements that are prepared, by name."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._fd = -1
        """Which the loop watches, also between statements: to begin and to end that for each takes system calls."""
        self._answered: asyncio.Future[PGresult] | None = None
        self._result: PGresult | None = None
        self._looking: asyncio.TimerHandle

    async def run(self, statement: Statement, values: Sequence[bytes | None]) -> tuple[Any, ...]:
        """The one row of a statement. values: its parameters in binary. Raises what the driver raises.

        If it is cancelled, the connection is closed; the server may carry out the statement or not.
        """
        async with self.lock:
            row_loader = self._row_loaders.get(statement.name)
            if row_loader is None:
                await self._ask_server(
                    self.pgconn.send_prepare, statement.name, statement.sql, statement.parameter_oids
                )
                row_loader = self._row_loaders[statement.name] = Transformer(self)
            result = await self._ask_server(
                self.pgconn.send_query_prepared, statement.name, values, statement.formats, Format.BINARY
            )
        # The types of its columns are those of its first result.
        row_loader.set_pgresult(result, set_loaders=row_loader.pgresult is None)
        return row_loader.load_row(0, tuple)

    async def fetch(self, sql: bytes, parameter_oids: Sequence[int], values: Sequence[bytes | None]) -> PGresult:
        """The rows of a statement that is planned for these values, all in binary. Raises and is cancelled as `run`."""
        async with self.lock:
            formats = (Format.BINARY,) * len(values)
            return await self._ask_server(
                self.pgconn.send_query_params, sql, values, parameter_oids, formats, Format.BINARY
            )

    async def wait(self, *args: Any, **kwargs: Any) -> Any:
        """As the driver has it, which reads the socket itself."""
        self._leave_loop()
        return await super().wait(*args, **kwargs)

    async def close(self) -> None:
        """As the driver has it."""
        self._leave_loop()
        await super().close()

    async def _ask_server(self, send: Callable[..., None], *arguments: object) -> PGresult:
        """Sends by this function of libpq's, and returns what the server answers."""
        loop = asyncio.get_running_loop()
        self._result = None
        answered = self._answered = loop.create_future()
        self._looking = loop.call_later(_LOOK_S, self._poll_socket)
        try:
            send(*arguments)
            is_unsent = self.pgconn.flush()
            if self._loop is None:
                self._loop, self._fd = loop, self.pgconn.socket
                loop.add_reader(self._fd, self._receive)
            if is_unsent:
                loop.add_writer(self._fd, self._flush_socket)
            found: PGresult = await answered
        except psycopg.Error:
            self._leave_loop()  # libpq may have closed the socket, and the next one gets its number
            raise
        except asyncio.CancelledError:
            self._leave_loop()
            self.pgconn.finish()  # its answer would be taken for that of the next statement
            raise
        finally:
            self._answered = None
            self._looking.cancel()
        if found.status not in {ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK}:
            raise error_from_result(found, "utf-8")
        return found

    def _leave_loop(self) -> None:
        if self._loop is not None:
            self._loop.remove_reader(self._fd)
            self._loop.remove_writer(self._fd)
            self._loop = None

    def _receive(self) -> None:
        pgconn, answered = self.pgconn, self._answered
        try:
            pgconn.consume_input()
            while answered is not None and not (answered.done() or pgconn.is_busy()):
                following = pgconn.get_result()
                if following is None:
                    assert self._result is not None
                    answered.set_result(self._result)
                elif self._result is None:
                    self._result = following
        except psycopg.Error as exc:
            self._leave_loop()  # the session is at its end
            if answered is None or answered.done():
                return
            if self._result is not None and self._result.status == ExecStatus.FATAL_ERROR:
                answered.set_result(self._result)  # why the server has closed the session
            else:
                answered.set_exception(exc)

    def _poll_socket(self) -> None:
        self._receive()
        if self._answered is not None and self._loop is not None:
            self._looking = self._loop.call_later(_LOOK_S, self._poll_socket)

    def _flush_socket(self) -> None:
        try:
            if not self.pgconn.flush():
                assert self._loop is not None
                self._loop.remove_writer(self._fd)
        except psycopg.Error as exc:
            self._leave_loop()
            if self._answered is not None and not self._answered.done():
                self._answered.set_exception(exc)
