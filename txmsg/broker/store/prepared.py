"""Runs statements that are prepared once per session, without the driver's cursor. Knows no statement of its own.

For each execution psycopg makes a cursor, converts each parameter and drives generators: more than half of what the
batch procedure costs a broker. Here parameters come as bytes, and callbacks of the event loop call libpq.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import AsyncConnection
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus, Format
from psycopg.pq.abc import PGresult


@dataclass(frozen=True, slots=True)
class Statement:
    """An SQL statement with parameters $1, $2, ... of the types with these oids. Sessions know it by its name."""

    name: bytes
    sql: bytes
    parameter_oids: tuple[int, ...]


class PreparedConnection(AsyncConnection[Any]):
    """A connection in autocommit that can also run prepared statements.

    With prepare_threshold None, because the driver deallocates all statements of a session when it empties its cache.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._names_prepared: set[bytes] = set()
        self._row_loader = Transformer(self)

    async def run(self, statement: Statement, values: Sequence[bytes | None]) -> tuple[Any, ...]:
        """The one row of a statement. values: its parameters in binary. Raises what the driver raises.

        If it is cancelled, the connection is closed; the server may carry out the statement or not.
        """
        async with self.lock:
            if statement.name not in self._names_prepared:
                self.pgconn.send_prepare(statement.name, statement.sql, statement.parameter_oids)
                await self._result()
                self._names_prepared.add(statement.name)
            self.pgconn.send_query_prepared(statement.name, values, (Format.BINARY,) * len(values), Format.BINARY)
            result = await self._result()
        self._row_loader.set_pgresult(result)
        return self._row_loader.load_row(0, tuple)

    async def _result(self) -> PGresult:
        """Sends what libpq has to send, and returns what the server answers."""
        loop = asyncio.get_running_loop()
        pgconn, fd = self.pgconn, self.pgconn.socket
        answered: asyncio.Future[PGresult] = loop.create_future()
        result: PGresult | None = None

        def receive() -> None:
            nonlocal result
            try:
                pgconn.consume_input()
                while not (answered.done() or pgconn.is_busy()):
                    following = pgconn.get_result()
                    if following is None:
                        assert result is not None
                        answered.set_result(result)
                    elif result is None:
                        result = following
            except psycopg.Error as exc:
                if answered.done():
                    return
                if result is not None and result.status == ExecStatus.FATAL_ERROR:
                    answered.set_result(result)  # why the server has closed the session
                else:
                    answered.set_exception(exc)

        def send() -> None:
            try:
                if not pgconn.flush():
                    loop.remove_writer(fd)
            except psycopg.Error as exc:
                if not answered.done():
                    answered.set_exception(exc)

        unsent = pgconn.flush()
        loop.add_reader(fd, receive)
        if unsent:
            loop.add_writer(fd, send)
        try:
            found = await answered
        except asyncio.CancelledError:
            pgconn.finish()  # its answer would be taken for that of the next statement
            raise
        finally:
            loop.remove_reader(fd)
            if unsent:
                loop.remove_writer(fd)
        if found.status not in {ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK}:
            raise error_from_result(found, "utf-8")
        return found
