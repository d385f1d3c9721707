"""Local transactions and their fence, as a model of `txmsg.checker.fence`. Pure.

One row per transaction, written by the local transaction or by a check, never by both. What the real statements do is
tested with real databases in tests/integration/test_fence.py.
"""

from __future__ import annotations

import enum
from uuid import UUID

from txmsg.message import TransactionState


class _Row(enum.Enum):
    WRITING = "written by a local transaction that runs"
    COMMIT = "commit"
    ROLLBACK = "rollback"


class Business:
    """A business database."""

    def __init__(self) -> None:
        self._rows: dict[UUID, _Row] = {}

    def begin(self, transaction_id: UUID) -> None:
        """Begin a local transaction with its fence row. After an earlier check it fails and never commits."""
        self._rows.setdefault(transaction_id, _Row.WRITING)

    def finish(self, transaction_id: UUID, *, commit: bool) -> bool:
        """End a local transaction. True if it committed now; one that never began or failed has nothing to end."""
        if self._rows.get(transaction_id) is not _Row.WRITING:
            return False
        if commit:
            self._rows[transaction_id] = _Row.COMMIT
        else:
            del self._rows[transaction_id]
        return commit

    def end(self) -> None:
        """Roll back transactions of dead clients that still run."""
        self._rows = {each: row for each, row in self._rows.items() if row is not _Row.WRITING}

    def check(self, transaction_id: UUID) -> TransactionState:
        """Return the outcome of a transaction. After ROLLBACK it can never commit."""
        match self._rows.setdefault(transaction_id, _Row.ROLLBACK):
            case _Row.WRITING:
                return TransactionState.UNKNOWN
            case _Row.COMMIT:
                return TransactionState.COMMIT
            case _Row.ROLLBACK:
                return TransactionState.ROLLBACK
