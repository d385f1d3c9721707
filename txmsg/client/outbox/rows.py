"""The rows of the outbox. `write` runs in the caller's transaction; each other step owns its transactions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote, unquote
from uuid import UUID

from sqlalchemy import (
    Connection,
    bindparam,
    delete,
    exc,
    func,
    insert,
    literal,
    not_,
    or_,
    select,
    text,
    update,
)
from sqlalchemy.orm import Session

from txmsg.checker.fence.business_row import refuse_absent_tables
from txmsg.checker.fence.check import transaction
from txmsg.checker.fence.driver import has_met_another
from txmsg.checker.fence.own_rows import own_connection
from txmsg.checker.tables import Ago, fence_identity_table, fence_table, outbox_table, outbox_turn_table
from txmsg.errors import MessageTooLarge, MisuseError
from txmsg.message import TransactionId

ROWS_PER_PAGE: Final = 500
BYTES_PER_PAGE: Final = 8 * 1024 * 1024
"""Of the rows that are read into memory at once; one may be larger."""
TURN_S: Final = 15.0
"""After so long without a word of its holder, another process takes the turn to relay. Longer than a page takes."""
PACKET_CHECKED_BYTES: Final = 1024 * 1024
"""A row of MySQL that is larger is compared with what the server takes; each server takes this by default."""
_PACKET_ROOM_BYTES: Final = 16 * 1024
_REFUSED_SIZE_MAX: Final = 2000

_outbox = outbox_table.c
_turn = outbox_turn_table.c
_NOW: Final = Ago(literal(0, literal_execute=True))
_TURN_BEGAN: Final = Ago(literal(TURN_S, literal_execute=True))
_TURN_ENDS: Final = Ago(literal(-TURN_S, literal_execute=True))
"""A turn taken later than this is over: the clock was set back since, and its holder may have died before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxRow:
    """The messages of one transaction."""

    seq: int
    transaction_id: TransactionId
    ordering_key: str | None
    """As it is stored."""
    messages: str
    """Packed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxStatus:
    """The state of a producer group's outbox, as a process sees it without counting.

    rows, refused: as the relay that has the turn counted them last. is_taken: another one has the turn.
    """

    rows: int
    refused: int
    oldest_s: float
    is_taken: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxBacklog:
    """The backlog of one producer group's outbox. oldest_s: the age of the oldest row; 0 without one."""

    group: str
    rows: int
    refused: int
    size_bytes: int
    oldest_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedOutboxRow:
    """A row, as an operator sees it. refused: what the brokers said, or None."""

    seq: int
    group: str
    transaction_id: TransactionId
    ordering_key: str | None
    messages: str
    written_at: datetime
    refused: str | None


# ---- around a call


def write(
    session: Session,
    group: str,
    transaction_id: TransactionId,
    key: str | None,
    messages: str,
    *,
    options: Mapping[str, Any] | None = None,
) -> None:
    """Add a row in the transaction of the session. Raises StorageError without the table, MessageTooLarge.

    options: of `row_options`, or those of the session.
    """
    own = own_connection(session, outbox_table)
    if len(messages) > PACKET_CHECKED_BYTES and own.dialect.name in ("mysql", "mariadb"):
        check_packet(own.scalar(text("SELECT @@max_allowed_packet")) or 0, len(messages))
    try:
        own.execute(
            insert(outbox_table).values(
                group_name=group,
                transaction_id=transaction_id,
                ordering_key=None if key is None else stored_key(key),
                messages=messages,
                size_bytes=len(messages),
            ),
            execution_options=options or {},
        )
    except (exc.ProgrammingError, exc.OperationalError) as error:
        refuse_absent_tables(own.engine, error, outbox_table)
        raise


def check_packet(allowed_bytes: int, size_bytes: int) -> None:
    """Raise MessageTooLarge for a row that a server of MySQL would not take: it closes the connection instead."""
    if size_bytes + _PACKET_ROOM_BYTES > allowed_bytes:
        raise MessageTooLarge(
            f"the messages of this call take {size_bytes} bytes in the outbox, and the business database takes packets "
            f"of {allowed_bytes} bytes: raise its max_allowed_packet, or send a reference to the data"
        )


_SELECT_KEY = (
    select(_outbox.seq)
    .where(_outbox.group_name == bindparam("group"), _outbox.ordering_key == bindparam("key"))
    .limit(1)
)


def has_key(connection: Connection, group: str, key: str) -> bool:
    """Return True if a committed row has this ordering key. Raises StorageError if the table is absent."""
    with _table_is_there(connection), connection.begin():
        return connection.execute(_SELECT_KEY, {"group": group, "key": stored_key(key)}).first() is not None


# ---- the relay


def outbox_status(connection: Connection, group: str, holder: UUID) -> OutboxStatus | None:
    """Return the state of a group's outbox, by two reads of one row each; None if it is empty."""
    with _table_is_there(connection), connection.begin():
        first = connection.execute(
            select(_outbox.written_at, _NOW).where(_outbox.group_name == group).order_by(_outbox.seq).limit(1)
        ).first()
        if first is None:
            return None
        turn = connection.execute(
            select(_turn.holder, _turn.waiting, _turn.refused, _turn.taken_at.between(_TURN_BEGAN, _TURN_ENDS)).where(
                _turn.group_name == group
            )
        ).first()
    written_at, now = first
    taken_by, waiting, refused, is_held = turn or (None, 0, 0, False)
    return OutboxStatus(
        rows=max(1, waiting),  # its holder has not counted yet
        refused=refused,
        oldest_s=max(0.0, (now - written_at).total_seconds()),
        is_taken=bool(is_held) and taken_by != holder,
    )


def count(connection: Connection, group: str, holder: UUID) -> tuple[int, int]:
    """Count the rows of a group, and how many of them are refused; noted beside the turn, for the other processes."""
    with connection.begin():
        found = connection.execute(
            select(func.count(), func.count(_outbox.refused)).where(_outbox.group_name == group)
        ).one()
        noting = update(outbox_turn_table).where(_turn.group_name == group, _turn.holder == holder)
        connection.execute(noting.values(waiting=found[0], refused=found[1]))
    return found[0], found[1]


def take_turn(connection: Connection, group: str, holder: UUID) -> bool:
    """Take, or keep, the turn to relay. It only saves work that would be done twice."""
    # By the database's clock alone: the processes that compete may have clocks that differ by minutes.
    mine_or_left = or_(_turn.holder == holder, not_(_turn.taken_at.between(_TURN_BEGAN, _TURN_ENDS)))
    taking = update(outbox_turn_table).where(_turn.group_name == group, mine_or_left)
    with connection.begin():
        if connection.execute(taking.values(holder=holder, taken_at=_NOW)).rowcount == 1:
            return True
    try:
        with connection.begin():
            connection.execute(insert(outbox_turn_table).values(group_name=group, holder=holder, taken_at=_NOW))
    # The primary key decides between two processes that insert at once; the loser needs no lock, and looks again later.
    except exc.IntegrityError:
        return False  # another one's
    return True


def seize_turn(connection: Connection, group: str, holder: UUID) -> bool:
    """Take the turn from any holder."""
    with connection.begin():
        connection.execute(delete(outbox_turn_table).where(_turn.group_name == group, _turn.holder != holder))
    return take_turn(connection, group, holder)


def leave_turn(connection: Connection, group: str, holder: UUID) -> None:
    """Give up the turn, so that another process can relay at once."""
    with connection.begin():
        connection.execute(delete(outbox_turn_table).where(_turn.group_name == group, _turn.holder == holder))


def page(connection: Connection, group: str, after: int, with_refused: bool) -> list[OutboxRow]:
    """Return the next rows to be relayed behind row `after`, in order: some hundreds, or some megabytes.

    Left out are those of an ordering key of which an earlier row still waits; and, unless with_refused, rows that were
    refused, with those of their key.
    """
    with connection.begin():
        seqs = _page(connection, group, after, with_refused)
        found = connection.execute(
            select(_outbox.seq, _outbox.transaction_id, _outbox.ordering_key, _outbox.messages)
            .where(_outbox.seq.in_(seqs))
            .order_by(_outbox.seq)
        ).all()
    return [
        OutboxRow(seq=seq, transaction_id=TransactionId(id_), ordering_key=key, messages=messages)
        for seq, id_, key, messages in found
    ]


_SELECT_WAITING = (
    select(_outbox.seq, _outbox.size_bytes, _outbox.ordering_key, _outbox.refused.is_not(None))
    .where(_outbox.group_name == bindparam("group"))
    .order_by(_outbox.seq)
    .limit(bindparam("rows"))
)


def _page(connection: Connection, group: str, after: int, with_refused: bool) -> list[int]:
    # All from the first one on, by one statement, which sees one moment: a transaction may commit a row after later
    # ones were relayed, and a call that came after it, with the same key, be behind those. SQL that compares the rows
    # of a key with each other may cost the square of them: the table has grown since its databases counted its rows.
    rows_max = 2 * ROWS_PER_PAGE
    while True:
        waiting = connection.execute(_SELECT_WAITING, {"group": group, "rows": rows_max}).all()
        seqs, is_full = _filled(relayable(map(tuple, waiting), after, with_refused))
        if is_full or len(waiting) < rows_max:
            return seqs
        rows_max *= 4  # many wait for others of their key


def _filled(found: Iterable[tuple[int, int]]) -> tuple[list[int], bool]:
    """Return the first rows, as many as a page takes, and True if there are more."""
    seqs: list[int] = []
    left_bytes = BYTES_PER_PAGE
    for seq, size_bytes in found:
        left_bytes -= size_bytes
        if len(seqs) == ROWS_PER_PAGE or (seqs and left_bytes < 0):
            return seqs, True
        seqs.append(seq)
    return seqs, False


def relayable(
    waiting: Iterable[tuple[int, int, str | None, bool]], after: int, with_refused: bool
) -> Iterator[tuple[int, int]]:
    """Yield number and size of the rows, in their order, that may be relayed behind row `after`. Pure.

    waiting: number, size, ordering key, and whether it was refused, of each row from the first one on.
    """
    held: set[str] = set()
    """Keys of which an earlier row waits."""
    for seq, size_bytes, key, is_refused in waiting:
        if seq > after and key not in held and (with_refused or not is_refused):
            yield seq, size_bytes
        elif key is not None:
            held.add(key)


def finish(connection: Connection, fence_id: UUID, relayed: Mapping[int, TransactionId]) -> bool:
    """Delete rows, and write the fence rows of the transactions that their messages are halves of now.

    True: it is on disk. False, and nothing is changed by this call: a row was gone, or a check-back has decided one of
    the transactions. Raises MisuseError where the fence is another one now.
    """
    try:
        with transaction(connection):
            # First: SQLite refuses at once to write after it has read, if another one has written meanwhile.
            gone = delete(outbox_table).where(_outbox.seq.in_(list(relayed)))
            # All or nothing: with one row gone, another relay has stored its messages under its own transaction ids,
            # and committing these would deliver them twice.
            if connection.execute(gone).rowcount != len(relayed):
                connection.rollback()
                return False
            if connection.scalar(select(fence_identity_table.c.fence_id)) != fence_id:
                raise MisuseError(
                    f"the fence id of {connection.engine.url} has changed since this process started: start it again"
                )
            fenced = [{"transaction_id": each, "outcome": "commit"} for each in relayed.values()]
            connection.execute(insert(fence_table), fenced)
    except exc.DBAPIError as error:
        if has_met_another(error):
            return False
        raise
    return True


def ready(connection: Connection, relayed: Mapping[int, TransactionId]) -> set[int]:
    """Return the rows among these that exist and whose transaction has no fence row: `finish` can do them."""
    decided = select(fence_table.c.transaction_id).where(fence_table.c.transaction_id.in_(list(relayed.values())))
    with connection.begin():
        there = set(connection.scalars(select(_outbox.seq).where(_outbox.seq.in_(list(relayed)))))
        ids = {TransactionId(each) for each in connection.scalars(decided)}
    return {seq for seq, transaction_id in relayed.items() if seq in there and transaction_id not in ids}


def note_refused(connection: Connection, refused: Sequence[tuple[int, str]]) -> None:
    """Note why rows were refused."""
    with connection.begin():
        for seq, why in refused:
            connection.execute(update(outbox_table).where(_outbox.seq == seq).values(refused=why[:_REFUSED_SIZE_MAX]))


# ---- for operators


def waiting(connection: Connection) -> list[OutboxBacklog]:
    """Return the backlog, by producer group."""
    with _table_is_there(connection), connection.begin():
        found = connection.execute(
            select(
                _outbox.group_name,
                func.count(),
                func.count(_outbox.refused),
                func.sum(_outbox.size_bytes),
                func.min(_outbox.written_at),
                _NOW,
            ).group_by(_outbox.group_name)
        ).all()
    return [
        OutboxBacklog(
            group=group,
            rows=rows,
            refused=refused,
            size_bytes=int(size_bytes),
            oldest_s=max(0.0, (now - oldest).total_seconds()),
        )
        for group, rows, refused, size_bytes, oldest, now in found
    ]


def listed(connection: Connection, group: str | None, limit: int) -> list[ListedOutboxRow]:
    """Return the oldest rows, of one group or of all."""
    statement = select(outbox_table).order_by(_outbox.seq).limit(limit)
    if group is not None:
        statement = statement.where(_outbox.group_name == group)
    with _table_is_there(connection), connection.begin():
        found = connection.execute(statement).all()
    return [
        ListedOutboxRow(
            seq=row.seq,
            group=row.group_name,
            transaction_id=TransactionId(row.transaction_id),
            ordering_key=None if row.ordering_key is None else unquote(row.ordering_key),
            messages=row.messages,
            written_at=row.written_at,
            refused=row.refused,
        )
        for row in found
    ]


def remove(connection: Connection, seqs: Iterable[int] | None) -> int:
    """Delete rows, or all: their messages are never delivered. Returns their number."""
    statement = delete(outbox_table)
    if seqs is not None:
        statement = statement.where(_outbox.seq.in_(list(seqs)))
    with _table_is_there(connection), connection.begin():
        return connection.execute(statement).rowcount


def stored_key(key: str) -> str:
    """Return an ordering key in the form that the table has."""
    return quote(key, safe="")


@contextmanager
def _table_is_there(connection: Connection) -> Iterator[None]:
    try:
        yield
    except (exc.ProgrammingError, exc.OperationalError) as error:
        refuse_absent_tables(connection.engine, error, outbox_table)
        raise
