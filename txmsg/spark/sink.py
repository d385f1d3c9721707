"""Writes batches of a stream into PostgreSQL, each exactly once, across crashes of either side.

Spark runs a batch again when it does not know that it was done: its own mark, in the checkpoint, comes after the sink.
So the sink keeps a mark of its own, in the transaction of what it writes: per query the number of its last batch.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar
from uuid import UUID

import psycopg
from pyspark.sql import DataFrame
from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_delay, wait_exponential

from txmsg.errors import MisuseError, StorageError
from txmsg.runtime.logs import EventLog
from txmsg.runtime.postgres import FORM, connect

_log = EventLog(__name__)

T = TypeVar("T")

_CONNECT_S_MAX: Final = 10
_TRIED_S_MAX: Final = 60.0
_WAIT_S_MIN, _WAIT_S_MAX = 0.1, 5.0
_LOCK: Final = 7_309_457_601_943_117_363
"""The advisory lock for creating the table: concurrent `create table if not exists` of two sessions can fail."""

_FIND_TABLE = "select to_regclass('txmsg_spark_query')"
_CREATE_TABLE = """
create table if not exists txmsg_spark_query (
    query         text primary key,
    checkpoint_id uuid not null,
    batch_id      bigint not null check (batch_id >= 0),
    written_at    timestamptz not null
)
"""
_ADD = """
insert into txmsg_spark_query (query, checkpoint_id, batch_id, written_at) values (%s, %s, 0, clock_timestamp())
on conflict (query) do nothing
"""
_READ = "select checkpoint_id, batch_id from txmsg_spark_query where query = %s for update"
_ADVANCE = "update txmsg_spark_query set batch_id = %s, written_at = clock_timestamp() where query = %s"


def write_idempotent(
    url: str,
    *,
    query: str,
    collect: Callable[[DataFrame, int], T],
    write: Callable[[psycopg.Connection[Any], T], None],
) -> Callable[[DataFrame, int], None]:
    """Return a function for `writeStream.foreachBatch` that writes each batch exactly once, even if Spark repeats it.

    collect: a function of a batch and its number that collects the rows to write at the driver, before the transaction.
    write: writes them on this connection, in the transaction that also records the batch in the table
    txmsg_spark_query, which is created if missing. It must not commit. Its exceptions end the query, and nothing is
    written; only if the database is unreachable or fails (psycopg.OperationalError), it is called again, for up to a
    minute.
    query: a name of the stream, unique among those that write to this database, and the same after restarts.

    Raises MisuseError if the query has another checkpoint than before, and StorageError if the database is older than
    the checkpoint, or does not know the query: to continue would count messages twice, or never. So a query must use
    this sink from its first batch on.
    """
    sink = BatchSink(url, query, write)

    def write_batch(batch: DataFrame, batch_id: int) -> None:
        checkpoint_id = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        if checkpoint_id is None:
            raise MisuseError(f"query {query!r} is written outside of a stream: give this to writeStream.foreachBatch")
        sink.write(UUID(checkpoint_id), batch_id, collect(batch, batch_id))

    return write_batch


class BatchSink(Generic[T]):
    """The writer of one query's batches, one after the other, on a connection that it keeps between them."""

    def __init__(self, url: str, query: str, write: Callable[[psycopg.Connection[Any], T], None]) -> None:
        self._url = url
        self._query = query
        self._write = write
        self._kept: list[psycopg.Connection[Any]] = []
        self.close = weakref.finalize(self, _close, self._kept)
        """Closes the connection; called at the latest when the sink is garbage-collected."""

    def write(self, checkpoint_id: UUID, batch_id: int, collected: T) -> None:
        """Write a batch unless it is written already. A commit whose reply was lost is found at the next attempt."""
        for attempt in Retrying(
            retry=retry_if_exception_type(psycopg.OperationalError),
            wait=wait_exponential(_WAIT_S_MIN, max=_WAIT_S_MAX),
            stop=stop_after_delay(_TRIED_S_MAX),
            before_sleep=_log_failure,
            reraise=True,
        ):
            with attempt:
                self._write_once(checkpoint_id, batch_id, collected)

    def _write_once(self, checkpoint_id: UUID, batch_id: int, collected: T) -> None:
        if not self._kept:
            self._kept.append(connect(self._url, FORM, autocommit=False, connect_timeout=_CONNECT_S_MAX))
            # Whatever the server's default: under REPEATABLE READ or SERIALIZABLE `for update` fails after a concurrent
            # driver's commit, instead of showing its batch to `claim_batch`.
            self._kept[0].isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        connection = self._kept[0]
        try:
            # The mark and the rows commit together, so a crash leaves both or neither. If the commit's reply is lost,
            # the next attempt finds the mark and writes nothing.
            with connection.transaction():
                if claim_batch(connection, query=self._query, checkpoint_id=checkpoint_id, batch_id=batch_id):
                    self._write(connection, collected)
        except psycopg.OperationalError:
            _close(self._kept)
            raise


def _close(kept: list[psycopg.Connection[Any]]) -> None:
    while kept:
        kept.pop().close()


def claim_batch(connection: psycopg.Connection[Any], *, query: str, checkpoint_id: UUID, batch_id: int) -> bool:
    """Record a batch in the caller's transaction. Returns False if it was written before, and must not be written
    again.

    Locks the query's row until the transaction ends, so that a driver that was considered dead and its successor cannot
    write at the same time. For sinks that need more than `write_idempotent`; needs READ COMMITTED.
    """
    _create_table(connection)
    # Only the first batch may add the row. A query that continues without one has lost its record, and to go on would
    # count messages twice or never.
    if batch_id == 0 and connection.execute(_ADD, (query, checkpoint_id)).rowcount:
        return True
    row = connection.execute(_READ, (query,)).fetchone()
    if row is None:
        raise StorageError(
            f"query {query!r} continues with batch {batch_id}, and this database has no record of it: was it emptied "
            "or replaced? Use the original database, or start with another checkpointLocation"
        )
    known_checkpoint, known_batch = row
    if known_checkpoint != checkpoint_id:
        raise MisuseError(
            f"query {query!r} was written from checkpoint {known_checkpoint}, and this is {checkpoint_id}, which "
            "starts from the beginning: use the old checkpointLocation, or clear what the query wrote and its row of "
            "txmsg_spark_query"
        )
    if batch_id > known_batch + 1:
        raise StorageError(
            f"query {query!r} continues with batch {batch_id}, and the last one in this database is {known_batch}: "
            "was it restored from a backup? Clear what the query wrote and its row of txmsg_spark_query, and start "
            "with another checkpointLocation"
        )
    if batch_id <= known_batch:
        return False
    connection.execute(_ADVANCE, (batch_id, query))
    return True


def _create_table(connection: psycopg.Connection[Any]) -> None:
    # Not created at every batch: the lock would make all writers wait for each other, and a role without the right to
    # create tables could not use an existing one.
    row = connection.execute(_FIND_TABLE).fetchone()
    if row is None or row[0] is None:
        connection.execute("select pg_advisory_xact_lock(%s)", (_LOCK,))
        connection.execute(_CREATE_TABLE)


def _log_failure(attempt: RetryCallState) -> None:
    assert attempt.outcome is not None
    _log.warning(
        "spark.write_repeated",
        "a batch could not be written, attempt %(attempt)d: %(error)s",
        attempt=attempt.attempt_number,
        error=attempt.outcome.exception(),
    )
