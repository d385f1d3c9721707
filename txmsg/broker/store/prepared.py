"""Runs statements, prepared once per session or not, without the driver's cursor. Knows no statement of its own.

For each execution psycopg makes a cursor, converts each parameter and drives generators: more than half of the broker's
cost of the batch procedure (114 us of a core against 49 us here: decision 53). Here parameters come as bytes, and
callbacks of the event loop call libpq.
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
"""Seconds between polls for an answer that the event loop has not announced: uvloop reports an error of a socket once
and then nothing more, even if the server's last words were not read to their end."""


@dataclass(frozen=True)
class Statement:
    """An SQL statement with parameters $1, $2, ... of the types with these oids. Sessions know it by its name."""

    name: bytes
    sql: bytes
    parameter_oids: tuple[int, ...]

    @cached_property
    def formats(self) -> tuple[Format, ...]:
        """The formats of the parameters: all binary."""
        return (Format.BINARY,) * len(self.parameter_oids)


class PreparedConnection(AsyncConnection[Any]):
    """A connection in autocommit that can also run prepared statements.

    prepare_threshold must be None: the driver deallocates all statements of a session when it empties its cache.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._row_loaders: dict[bytes, BaseTransformer] = {}
        """By name of the prepared statement."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._fd = -1
        """The file descriptor that the loop watches, also between statements: to add and remove it for each takes
        system calls."""
        self._answered: asyncio.Future[PGresult] | None = None
        self._result: PGresult | None = None
        self._looking: asyncio.TimerHandle

    async def run(self, statement: Statement, values: Sequence[bytes | None]) -> tuple[Any, ...]:
        """Return the one row of a statement. values: its parameters in binary. Raises the driver's errors.

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
        # The types of the columns are those of the first result, so loaders are looked up once per statement.
        row_loader.set_pgresult(result, set_loaders=row_loader.pgresult is None)
        return row_loader.load_row(0, tuple)

    async def fetch(self, sql: bytes, parameter_oids: Sequence[int], values: Sequence[bytes | None]) -> PGresult:
        """Return the rows of a statement that is planned for these values, all in binary.

        Raises and is cancelled as `run`.
        """
        async with self.lock:
            formats = (Format.BINARY,) * len(values)
            return await self._ask_server(
                self.pgconn.send_query_params, sql, values, parameter_oids, formats, Format.BINARY
            )

    async def wait(self, *args: Any, **kwargs: Any) -> Any:
        """Do as the driver does; it reads the socket itself, so the loop stops watching it first."""
        self._leave_loop()
        return await super().wait(*args, **kwargs)

    async def close(self) -> None:
        """Do as the driver does. The loop stops watching the socket first."""
        self._leave_loop()
        await super().close()

    async def _ask_server(self, send: Callable[..., None], *arguments: object) -> PGresult:
        """Send by this function of libpq, and return the server's answer."""
        loop = asyncio.get_running_loop()
        self._result = None
        answered = self._answered = loop.create_future()
        self._looking = loop.call_later(_LOOK_S, self._poll_socket)
        try:
            send(*arguments)
            # Mostly everything fits into the socket's buffer; a writer for each statement would cost two more system
            # calls.
            is_unsent = self.pgconn.flush()
            if self._loop is None:
                self._loop, self._fd = loop, self.pgconn.socket
                # Once per session and not per statement, which saves 8 of 14 system calls (decision 53).
                loop.add_reader(self._fd, self._receive)
            if is_unsent:
                loop.add_writer(self._fd, self._flush_socket)
            found: PGresult = await answered
        except psycopg.Error:
            self._leave_loop()  # libpq may have closed the socket, and the next connection would get its number
            raise
        except asyncio.CancelledError:
            self._leave_loop()
            self.pgconn.finish()  # else its answer would be taken for that of the next statement
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
            # libpq ends the results of a statement with None; the first result is the answer, whatever follows.
            while answered is not None and not (answered.done() or pgconn.is_busy()):
                following = pgconn.get_result()
                if following is None:
                    assert self._result is not None
                    answered.set_result(self._result)
                elif self._result is None:
                    self._result = following
        except psycopg.Error as exc:
            self._leave_loop()  # the session has ended
            if answered is None or answered.done():
                return
            if self._result is not None and self._result.status == ExecStatus.FATAL_ERROR:
                answered.set_result(self._result)  # the reason for which the server has closed the session
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
