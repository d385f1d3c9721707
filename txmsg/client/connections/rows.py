# Generated from rows_async.py by `make generate`: change that one.

"""The rows that commit with the effects, written on a connection of a driver."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from txmsg.checker.connections.drivers import MySQL
from txmsg.checker.connections.opening import Driver, driver_of
from txmsg.checker.fence.driver import has_met_another, is_absent_table, is_duplicate
from txmsg.client.connections.statements import (
    INSERT_FENCE,
    INSERT_INBOX,
    INSERT_OUTBOX,
    RAISE_INBOX,
    RAISE_INBOX_BY_UPSERT,
)
from txmsg.client.outbox.rows import PACKET_CHECKED_BYTES, check_packet
from txmsg.errors import MisuseError, StorageError, TransactionRefused
from txmsg.message import TransactionId


def write_fence(driver: Driver, connection: Any, transaction_id: TransactionId, fence_id: UUID) -> None:
    """Raise TransactionRefused if there is a row of this id, MisuseError for the database of another fence."""
    try:
        written = driver.execute(connection, INSERT_FENCE, driver.id_of(transaction_id), driver.id_of(fence_id))
    except Exception as exc:
        if has_met_another(exc):
            raise TransactionRefused(
                f"transaction {transaction_id} must not commit: its fence row exists already, because a check has "
                "decided ROLLBACK, or because the id was used before; run the operation again as a new transaction"
            ) from exc
        _refuse_absent_table(exc)
        raise
    if written != 1:
        raise MisuseError(
            f"the connection is not to the database of fence {fence_id}: checks would look for the transaction "
            "elsewhere and drop its message; give session= and FenceCheckListener the same database"
        )


def record(driver: Driver, connection: Any, row: dict[str, object], *, goes_on: bool = False) -> bool:
    """Write the row of a message that is handled. False: it was handled before.

    goes_on: the transaction does so then, which PostgreSQL aborts after an error.
    """
    group, message_id, generation = row["group_name"], str(row["message_id"]), row["generation"]
    is_upsert = (goes_on or generation != 0) and not isinstance(driver, MySQL)
    statement = RAISE_INBOX_BY_UPSERT if is_upsert else INSERT_INBOX
    try:
        return driver.execute(connection, statement, group, message_id, generation) == 1
    except Exception as exc:
        if not is_duplicate(exc):
            _refuse_absent_table(exc)
            raise
    if generation == 0:
        return False
    return driver.execute(connection, RAISE_INBOX, generation, group, message_id, generation) == 1


def write_outbox(
    connection: Any, group: str, transaction_id: TransactionId, stored_key: str | None, messages: str
) -> None:
    """Add a row of the outbox in the transaction of the connection. Raises StorageError, MessageTooLarge."""
    driver = driver_of(connection)
    assert driver is not None, "the transaction has begun on it"
    if len(messages) > PACKET_CHECKED_BYTES and isinstance(driver, MySQL):
        check_packet(driver.packet_bytes(connection), len(messages))
    try:
        row = group, driver.id_of(transaction_id), stored_key, messages, len(messages)
        driver.execute(connection, INSERT_OUTBOX, *row)
    except Exception as exc:
        _refuse_absent_table(exc)
        raise


def _refuse_absent_table(error: Exception) -> None:
    if is_absent_table(error):
        raise StorageError(
            f"a table of txmsg is absent from the database that session= opens ({error}): call "
            "txmsg.create_tables(connect) there, or give session= and FenceCheckListener the same database"
        ) from error
