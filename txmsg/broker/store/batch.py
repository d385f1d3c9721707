"""The batch: the input of one call of `txmsg.write_batch`, and its result."""

from __future__ import annotations

import enum
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from psycopg import DatabaseError

from txmsg.broker.store.arrays import (
    Array,
    bytea_array,
    int4_array,
    moment_array,
    optional_bytea_array,
    optional_int4_array,
    optional_int8_array,
    optional_moment_array,
    smallint_array,
    text_array,
    uuid_array,
)
from txmsg.broker.store.prepared import PreparedConnection, Statement
from txmsg.broker.store.standbys import await_standbys
from txmsg.errors import TxmsgError
from txmsg.message.columns import COLUMNS, OF_PLAIN, Column, Columns

STALE_SEGMENT = "TX001"
"""SQLSTATE: the segment in the call is not open any more. Read the segments again and repeat the batch."""


class Unreplicated(Exception):
    """A batch has a message that waits for a standby, and no standby is attached: nothing was written."""


class Unwritable(Exception):
    """A value in a batch cannot be stored, such as a number out of range: nothing was written."""


class DecidedBy(enum.IntEnum):
    """The party that decided the outcome of a message. On disk: numbers never change their meaning."""

    SENDER = 0
    """A plain message: sending it was the decision."""
    CLIENT = 1
    CHECK = 2
    PERSON = 3


_NO_COLUMNS = Columns()
"""Shared by all batches without half messages or without plain ones: never changed."""


@dataclass(slots=True)
class WriteBatch:
    """Halves, plain messages and outcomes for one call. A transaction has at most one outcome in a batch.

    decided_by: the deciding party of outcomes that the client did not decide itself. groups: the producer group that a
    transaction must belong to; a transaction of another group counts as unknown. incarnation: of the database from
    which the ids of queues and producers were read; None: the batch has no such ids.
    """

    half: Columns = field(default_factory=lambda: _NO_COLUMNS)
    plain: Columns = field(default_factory=lambda: _NO_COLUMNS)
    commit: list[bytes] = field(default_factory=list)
    rollback: list[bytes] = field(default_factory=list)
    check: list[bytes] = field(default_factory=list)
    decided_by: dict[bytes, DecidedBy] = field(default_factory=dict)
    groups: dict[bytes, str] = field(default_factory=dict)
    incarnation: UUID | None = None

    def extend(self, other: WriteBatch) -> None:
        """Append the contents of `other`, which must not be of another incarnation."""
        assert None in {self.incarnation, other.incarnation} or self.incarnation == other.incarnation
        self.incarnation = self.incarnation or other.incarnation
        if other.half.transaction_id:
            # Copy on write: _NO_COLUMNS is shared by all batches.
            self.half = self.half if self.half is not _NO_COLUMNS else Columns()
            self.half.extend(other.half)
        if other.plain.transaction_id:
            self.plain = self.plain if self.plain is not _NO_COLUMNS else Columns()
            self.plain.extend(other.plain)
        self.commit += other.commit
        self.rollback += other.rollback
        self.check += other.check
        self.decided_by.update(other.decided_by)
        self.groups.update(other.groups)

    def ends(self) -> list[bytes]:
        """Return the ids of the transactions that have an outcome in this batch."""
        return self.commit + self.rollback + self.check

    def ids(self) -> set[bytes]:
        """Return the ids of all transactions in the batch."""
        return {*self.half.transaction_id, *self.plain.transaction_id, *self.commit, *self.rollback, *self.check}

    def only(self, ids: set[bytes]) -> WriteBatch:
        """Return the part of the batch that concerns these transactions."""
        return WriteBatch(
            half=self.half.only(ids),
            plain=self.plain.only(ids),
            commit=[id_bytes for id_bytes in self.commit if id_bytes in ids],
            rollback=[id_bytes for id_bytes in self.rollback if id_bytes in ids],
            check=[id_bytes for id_bytes in self.check if id_bytes in ids],
            decided_by={id_bytes: by for id_bytes, by in self.decided_by.items() if id_bytes in ids},
            groups={id_bytes: group for id_bytes, group in self.groups.items() if id_bytes in ids},
            incarnation=self.incarnation,
        )

    def __len__(self) -> int:
        messages = len(self.half.transaction_id) + len(self.plain.transaction_id)
        return messages + len(self.commit) + len(self.rollback) + len(self.check)


Problem = str | TxmsgError
"""An error of one transaction: a kind, as the batch function names it, or an exception raised before the call."""


@dataclass(slots=True)
class AppliedBatch:
    """The result of a batch.

    ends: queue id -> an offset that the queue reaches to. problems: transaction id -> kind, one of those of the
    function: other, resolved, conflict, expired, busy. deliver_at_us: the earliest time of the delayed messages that
    were stored, None if none were. more: transactions whose ordering keys are free while more messages wait behind them
    than one batch moves; a batch that names them as `check` moves more.
    """

    ends: dict[int, int] = field(default_factory=dict)
    problems: dict[bytes, Problem] = field(default_factory=dict)
    deliver_at_us: int | None = None
    more: list[bytes] = field(default_factory=list)

    def extend(self, other: AppliedBatch) -> None:
        """Add the result of another batch."""
        self.ends.update(other.ends)
        self.problems.update(other.problems)
        times_us = [time_us for time_us in (self.deliver_at_us, other.deliver_at_us) if time_us is not None]
        self.deliver_at_us = min(times_us, default=None)
        self.more += other.more


_UNREPLICATED = {
    "TX004": "no synchronous standby is attached to it: attach one that synchronous_standby_names names, or let the "
    "topic be sync",
    "TX005": "its role may not see whether a standby is attached: grant it pg_read_all_stats",
    "TX006": "a reader of a logical slot, such as a tailer, counts as its synchronous standby: set "
    "synchronous_standby_names to the names of the standbys, not '*'",
}
"""The refusals of `set_level`, by SQLSTATE."""


# The body is incompressible and takes a new page, so that a full disk is noticed; the exception at the end undoes both
# inserts.
_TRY = b"""
do $$
declare
    v_segment int := (select id from txmsg.segment where state = 'open');
    -- Of 8 KiB that do not compress: it needs a new page, as most messages do.
    v_body bytea := (select string_agg(decode(md5(random()::text), 'hex'), '') from generate_series(1, 512));
begin
    insert into txmsg.half_message (transaction_id, n, queue, producer, body, born_at)
    values (gen_random_uuid(), 0, 0, 0, v_body, now());
    insert into txmsg.message (segment, queue, queue_offset, transaction_id, n, body, born_at)
    values (v_segment, 0, (random() * 1e18)::bigint, gen_random_uuid(), 0, v_body, now());
    raise exception using errcode = 'TX009';
exception when sqlstate 'TX009' then
    null;
end $$
"""


async def try_to_write(connection: PreparedConnection) -> None:
    """Insert rows as a batch does, and undo it. Raises the driver's errors, as for a full disk.

    In one statement, so no lock is held while the server waits for this process.
    """
    await connection.fetch(_TRY, (), ())


async def apply(
    connection: PreparedConnection,
    batch: WriteBatch,
    *,
    segment: int,
    previous: int,
    first_check_s: float,
    standby_wait_s: float = 5.0,
    incarnation: UUID | None = None,
) -> AppliedBatch:
    """Call the batch procedure. On return the batch is committed with the durability of its topics. Idempotent by ids.

    incarnation: the one that must be current, else nothing is written (OTHER_INCARNATION); None: any. Takes the shared
    rotation lock and the locks of the queues that messages enter, until its commit is visible; not until the answer is
    read. Not in a transaction block: the procedure commits. Where the batch waits for standbys, their flushed positions
    are read after the commit; standby_wait_s is the limit for both together. Raises Unwritable, Unreplicated,
    Unconfirmed.
    """
    try:
        # Built before anything is sent: an error here proves that nothing was written, so the writer can look for the
        # item that causes it.
        parameters = _parameters(batch)
    except (struct.error, ValueError) as exc:
        raise Unwritable(f"{type(exc).__name__}: {exc}") from exc
    begun = time.monotonic()
    try:
        row = await connection.run(
            _CALL,
            [
                incarnation.bytes if incarnation else None,
                _INT.pack(segment),
                _INT.pack(previous),
                _FLOAT.pack(first_check_s),
                *parameters,
            ],
        )
    except DatabaseError as exc:
        if exc.sqlstate in _UNREPLICATED:
            raise Unreplicated(_UNREPLICATED[exc.sqlstate]) from exc
        raise
    *columns, standby_names, flushed_at = row
    if standby_names is not None:
        # The server reports success also for a wait that it gave up at statement_timeout (decision 31), so a returned
        # call is no proof of a copy.
        left_s = begun + standby_wait_s - time.monotonic()
        await await_standbys(connection, standby_names, flushed_at, timeout_s=left_s)
    return _read(*(column or () for column in columns))


def _parameters(batch: WriteBatch) -> list[bytes]:
    """Return the columns of a batch in binary. Those of a kind that the batch does not have were built once."""
    half = [array.data for array in _arrays(batch.half, COLUMNS)] if batch.half.transaction_id else _NO_HALF
    ends = [array.data for array in _end_arrays(batch)] if batch.commit or batch.rollback or batch.check else _NO_ENDS
    plain = [array.data for array in _arrays(batch.plain, OF_PLAIN)] if batch.plain.transaction_id else _NO_PLAIN
    return half + ends + plain


def _arrays(columns: Columns, of: Sequence[Column]) -> list[Array]:
    count = len(columns.transaction_id)
    arrays: list[Array] = []
    for name, array, default, is_null in of:
        values = getattr(columns, name)
        if not values and count and default is not None and not is_null:
            # An empty column means the default in each row. A column that may be null is sent as '{}' instead, which
            # unnest() fills with nulls.
            values = [default] * count
        arrays.append(_ARRAYS[array, is_null](values))
    return arrays


def _end_arrays(batch: WriteBatch) -> list[Array]:
    return [
        uuid_array(batch.commit),
        uuid_array(batch.rollback),
        # In the usual batch the client decided all of them; then the column is empty.
        smallint_array(
            [batch.decided_by.get(id_bytes, DecidedBy.CLIENT) for id_bytes in batch.commit + batch.rollback]
            if batch.decided_by
            else []
        ),
        uuid_array(batch.check),
        text_array([batch.groups.get(id_bytes, "") for id_bytes in batch.ends()] if batch.groups else []),
    ]


_INT = struct.Struct(">i")
_FLOAT = struct.Struct(">d")
_ARRAYS: dict[tuple[str, bool], Callable[[Any], Array]] = {
    ("uuid[]", False): uuid_array,
    ("smallint[]", False): smallint_array,
    ("int[]", False): int4_array,
    ("int[]", True): optional_int4_array,
    ("bigint[]", True): optional_int8_array,
    ("text[]", True): text_array,
    ("bytea[]", False): bytea_array,
    ("bytea[]", True): optional_bytea_array,
    ("timestamptz[]", False): moment_array,
    ("timestamptz[]", True): optional_moment_array,
}
"""The constructor of an array, by its type and whether its elements may be null."""
_EMPTY = (_arrays(_NO_COLUMNS, COLUMNS), _end_arrays(WriteBatch()), _arrays(_NO_COLUMNS, OF_PLAIN))
_NO_HALF, _NO_ENDS, _NO_PLAIN = ([array.data for array in arrays] for arrays in _EMPTY)
_OIDS = (2950, 23, 23, 701, *[array.oid for arrays in _EMPTY for array in arrays])  # uuid, int, int, float8
# CALL requires an argument for each OUT parameter: the six nulls. The types are given at prepare, so that the server
# need not infer them, and each value is sent in binary.
_CALL = Statement(
    b"write_batch",
    b"call txmsg.write_batch($1, $2, $3, make_interval(secs => $4), %b, null, null, null, null, null, null)"
    % b", ".join(b"$%d" % number for number in range(5, len(_OIDS) + 1)),
    _OIDS,
)


def _read(
    kinds: Sequence[str], ids: Sequence[UUID | None], queues: Sequence[int | None], queue_offsets: Sequence[int | None]
) -> AppliedBatch:
    applied = AppliedBatch()
    for kind, transaction_id, queue, queue_offset in zip(kinds, ids, queues, queue_offsets, strict=True):
        if kind == "more":
            assert transaction_id is not None
            applied.more.append(transaction_id.bytes)
        elif kind == "due":
            applied.deliver_at_us = queue_offset
        elif transaction_id is None:
            assert queue is not None
            assert queue_offset is not None
            applied.ends[queue] = max(queue_offset, applied.ends.get(queue, 0))
        else:
            applied.problems.setdefault(transaction_id.bytes, kind)
    return applied
