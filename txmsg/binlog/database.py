"""The tailer's ordinary session on the Notify database, and what its errors mean to an operator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

import psycopg
from psycopg import Connection

from txmsg import postgres
from txmsg.errors import BrokerUnavailable, StorageError
from txmsg.postgres import KEEPALIVES, PINNED, SERVER_KEEPALIVES, require_utf8

Session: TypeAlias = Connection[Any]

_SETTINGS: Final = {
    **PINNED,
    **SERVER_KEEPALIVES,
    # Positions are looked at by retention alone: an old one after a crash keeps more, never less.
    "synchronous_commit": "off",
    # Statistics may say that a segment is empty: never read one whole to find a row.
    "enable_seqscan": "off",
    "jit": "off",
    "statement_timeout": "300s",
    "lock_timeout": "30s",
    # A tailer that stands still, as under SIGSTOP, gives up its lock to one that stands by.
    "idle_session_timeout": "60s",
}


def connect(url: str) -> Session:
    """A session in autocommit. Raises BrokerUnavailable while the database is away."""
    with translated():
        session = postgres.connect(url, _SETTINGS, application_name="txmsg tailer", connect_timeout=10, **KEEPALIVES)
    try:
        require_utf8(session)
    except StorageError:
        session.close()
        raise
    return session


@contextmanager
def translated() -> Iterator[None]:
    """Errors of the driver as ours: BrokerUnavailable where another try may help, else StorageError."""
    try:
        yield
    except psycopg.errors.InsufficientPrivilege as exc:
        raise StorageError(
            f"the tailer's role may not do this: {exc.diag.message_primary}; run the tailer as the role that ran "
            "`txmsg db upgrade`, and give it `alter role ... replication`"
        ) from exc
    except (psycopg.errors.LockNotAvailable, psycopg.errors.QueryCanceled) as exc:
        raise BrokerUnavailable(f"the Notify database cannot work now: {exc.diag.message_primary}") from exc
    except (psycopg.OperationalError, psycopg.InterfaceError) as exc:
        raise BrokerUnavailable(f"the Notify database is away: {' '.join(str(exc).split())}") from exc
    except psycopg.errors.UndefinedTable as exc:
        raise StorageError(
            f"the Notify database lacks a table ({exc.diag.message_primary}): run `txmsg db upgrade`"
        ) from exc
    except psycopg.Error as exc:
        raise StorageError(f"the Notify database refuses: {exc.diag.message_primary or exc}") from exc
