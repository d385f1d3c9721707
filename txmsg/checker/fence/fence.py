# Generated from fence_async.py by `make generate`: change that one.

"""The fence of an application. Its steps are in the modules beside this one."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, TypeVar
from uuid import UUID

from sqlalchemy import Connection, exc
from sqlalchemy.orm import Session

from txmsg.checker.connections.engines import Connect
from txmsg.checker.fence import business_row, check, identity, purge
from txmsg.checker.fence.engines import (
    FenceEngine,
    checked_engine,
    forget_connections,
    in_session,
    is_of_pool,
    on_engine,
    row_options,
    sync_session_of,
)
from txmsg.message import TransactionId, TransactionState
from txmsg.runtime.durations import Seconds
from txmsg.runtime.forks import renew_in_children

T = TypeVar("T")


class Fence:
    """The fence of one business database: PostgreSQL, MySQL, MariaDB or SQLite (a file).

    engine: runs the checks, on separate connections; or a function that opens a connection, see `FenceCheckListener`.
    `write` runs in the session that is passed to it. Raises MisuseError for an engine whose checks would share their
    connection, and so their transaction, with the application. In a forked child the engine has an empty pool.
    """

    def __init__(self, engine: FenceEngine | Connect) -> None:
        self.engine = checked_engine(engine)
        """The engine on which checks run."""
        self._row_options = row_options(self.engine)
        self.identity = identity.FenceIdentity()
        """The cached id; objects for the same database may share it by assignment."""
        renew_in_children(self)

    def _renew(self) -> None:
        forget_connections(self.engine)

    # ---- identity

    def fence_id(self) -> UUID:
        """Return the id of this fence: random, created on first use, then kept in the database.

        Raises StorageError when the tables are absent.
        """
        known = self.identity
        if known.fence_id is None:
            known.fence_id = self._run(identity.fence_id)
        return known.fence_id

    # ---- the business transaction

    def write(self, session: Session, transaction_id: TransactionId) -> None:
        """Insert the fence row in the transaction of `session`: it commits, or not, with the business effects.

        Call it first in the transaction, and outside any savepoint. The caller owns the transaction. Raises
        TransactionRefused when a check has decided ROLLBACK already (or the id was used before): roll back, and begin
        again under a new transaction id. Raises MisuseError inside a savepoint, in autocommit, inside a transaction
        that the session does not own, and for a session of another database than the fence's.
        """
        self._identify(session)
        in_session(session, business_row.write, transaction_id, self.fence_id(), self._row_options)

    def _identify(self, session: Session) -> None:
        """Read the id in the session if it is not known: a pool of one has no other connection than the session's."""
        if self.identity.fence_id is None and is_of_pool(sync_session_of(session), self.engine):
            self.identity.fence_id = in_session(session, business_row.fence_id, self._row_options)

    def _own_row(self, transaction_id: TransactionId) -> Callable[[Connection], bool]:
        """Return a function that is True if the row of `write` is still in a connection's transaction."""
        return lambda connection: business_row.is_written(connection, transaction_id, self._row_options)

    # ---- the check

    def check(self, transaction_id: TransactionId) -> TransactionState:
        """Return the outcome of the transaction; ROLLBACK also ensures that it can never commit. Idempotent.

        UNKNOWN while it is running: a check waits about LOCK_WAIT_S for it. Raises the driver's error if the database
        is unavailable or read-only; the caller counts that as UNKNOWN.
        """
        return self._run(check.check, transaction_id, self.identity.fence_id)

    # ---- upkeep

    def purge(self, older_than_s: Seconds, held: Callable[[list[TransactionId]], Collection[TransactionId]]) -> int:
        """Delete the rows that are older than `older_than_s` and not held by a broker. Return their number.

        Age is by the database's clock. `held` gets up to 1,000 ids at a time and returns those that a Notify database
        still holds undecided: their rows are still needed (`held_by` asks the brokers). Its exceptions end the purge;
        rows deleted before stay deleted. It is first called without ids, so that unavailable brokers are noticed even
        if there are no old rows. Raises MisuseError below PURGE_AGE_S_MIN.
        """
        age_s = purge.check_age(older_than_s)
        held([])
        after, deleted = UUID(int=0), 0
        while old := self._run(purge.old_rows, age_s, after):
            deleted += self._run(purge.delete_rows, purge.without(old, held(old)))
            after = old[-1]
        return deleted

    def _run(self, step: Callable[..., T], *args: Any) -> T:
        """Run a step on a connection of our own. All steps are idempotent."""
        try:
            return on_engine(self.engine, step, *args)
        except exc.DBAPIError as error:
            if not error.connection_invalidated:
                raise
        # The connection broke while it was idle in the pool, which SQLAlchemy has emptied now.
        return on_engine(self.engine, step, *args)
