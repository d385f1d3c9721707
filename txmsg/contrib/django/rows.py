"""The rows that commit with the effects, written and read by Django's own connection.

The tables are those of txmsg.checker.tables; rows are equal to those that SQLAlchemy writes.
"""

from __future__ import annotations

from uuid import UUID

from django.db import DatabaseError, IntegrityError, connections, transaction

from txmsg.checker.fence.driver import has_met_another, is_absent_table
from txmsg.checker.tables import fence_identity_table, fence_table, inbox_table, outbox_table
from txmsg.client.connections.statements import (
    INSERT_FENCE,
    INSERT_INBOX,
    INSERT_OUTBOX,
    RAISE_INBOX,
    RAISE_INBOX_BY_UPSERT,
    SELECT_FENCE,
    SELECT_INBOX,
)
from txmsg.client.outbox.rows import PACKET_CHECKED_BYTES, check_packet, stored_key
from txmsg.errors import MisuseError, StorageError, TransactionRefused
from txmsg.message import ReceivedMessage, TransactionId

_SELECT_KEPT = f"SELECT 1 FROM {outbox_table.name} WHERE group_name = %s AND ordering_key = %s LIMIT 1"


def write_fence(using: str, transaction_id: TransactionId, fence_id: UUID) -> None:
    """Write the fence row of a transaction. Raises TransactionRefused, StorageError without the table."""
    try:
        written = _execute(using, INSERT_FENCE, _id(using, transaction_id), _id(using, fence_id))
    except DatabaseError as exc:
        if isinstance(exc, IntegrityError) or has_met_another(exc.__cause__ or exc):
            raise TransactionRefused(
                f"transaction {transaction_id} must not commit: its fence row exists already, because a check has "
                "decided ROLLBACK; run the operation again"
            ) from exc
        raise
    if written != 1:
        raise MisuseError(
            f"Django's database {using!r} is not that of fence {fence_id} any more: its tables were recreated while "
            "this process ran; start it again"
        )


def is_fence_written(using: str, transaction_id: TransactionId) -> bool:
    """Return True if the fence row exists, as this thread's connection sees it."""
    return _is_there(using, SELECT_FENCE, _id(using, transaction_id))


def write_kept(using: str, group: str, transaction_id: TransactionId, key: str | None, messages: str) -> None:
    """Write a row of the outbox. Raises StorageError without the table, MessageTooLarge."""
    if len(messages) > PACKET_CHECKED_BYTES and connections[using].vendor == "mysql":
        with connections[using].cursor() as cursor:
            cursor.execute("SELECT @@max_allowed_packet")
            check_packet(cursor.fetchone()[0], len(messages))
    stored = None if key is None else stored_key(key)
    _execute(using, INSERT_OUTBOX, group, _id(using, transaction_id), stored, messages, len(messages))


def has_kept(using: str, group: str, key: str) -> bool:
    """Return True if messages of this ordering key are in the outbox, as this thread's connection sees it."""
    return _is_there(using, _SELECT_KEPT, group, stored_key(key))


def record_message(using: str, group: str, message: ReceivedMessage) -> bool:
    """Write the inbox row of a message. Return False if the message was handled before."""
    row = (group, str(message.id), message.generation)
    # MySQL takes INSERT and UPDATE instead: its upsert reports other counts, and its savepoint survives a duplicate
    # key.
    is_upsert = message.generation != 0 and connections[using].vendor != "mysql"
    try:
        with transaction.atomic(using=using):  # PostgreSQL takes no more statements after an error
            return _execute(using, RAISE_INBOX_BY_UPSERT if is_upsert else INSERT_INBOX, *row) == 1
    except IntegrityError:  # the key is the table's only constraint that this row can break
        if message.generation == 0:
            return False
    return _execute(using, RAISE_INBOX, message.generation, *row) == 1


def is_message_recorded(using: str, group: str, message: ReceivedMessage) -> bool:
    """Return True if the inbox row exists, as this thread's connection sees it."""
    return _is_there(using, SELECT_INBOX, group, str(message.id), message.generation)


def _id(using: str, value: UUID) -> UUID | str:
    """Return an id as txmsg.checker.tables.ID stores it."""
    return value if connections[using].vendor == "postgresql" else value.hex


def _execute(using: str, statement: str, *values: object) -> int:
    try:
        with connections[using].cursor() as cursor:
            cursor.execute(statement, values)
            return int(cursor.rowcount)
    except IntegrityError:
        raise
    except DatabaseError as exc:
        _refuse_absent_tables(using, exc)
        raise


def _is_there(using: str, statement: str, *values: object) -> bool:
    with connections[using].cursor() as cursor:
        cursor.execute(statement, values)
        return cursor.fetchone() is not None


def _refuse_absent_tables(using: str, error: DatabaseError) -> None:
    """Raises StorageError if the reason for `error` is that a table is absent."""
    for table in (fence_table, fence_identity_table, inbox_table, outbox_table):
        if is_absent_table(error.__cause__ or error, table.name):
            raise StorageError(
                f"table {table.name} is absent from Django's database {using!r}: run `manage.py migrate txmsg "
                f"--database {using}`"
            ) from error
