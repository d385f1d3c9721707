"""The tailer's ordinary session on the Notify database, and what its errors mean to an operator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, Final, TypeAlias

import psycopg
from psycopg import Connection

from txmsg.errors import BrokerUnavailable, StorageError
from txmsg.runtime import postgres
from txmsg.runtime.postgres import (
    KEEPALIVES,
    PINNED,
    SERVER_KEEPALIVES,
    WITHOUT_POOLER,
    cut_after,
    require_utf8,
    shares_sessions,
)

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

_ANSWER_S_MAX: Final = 30.0


def connect(url: str) -> Session:
    """Return a session in autocommit. Raises BrokerUnavailable while the database is away."""
    session = _connected(url)
    try:
        require_utf8(session)
    except StorageError:
        session.close()
        raise
    return session


def require_own_session(session: Session, url: str) -> None:
    """Raise StorageError if a pooler gives each transaction another session of the server.

    The lock of a mirror would then be held by a session that the next transaction of another client gets.
    """
    with (
        translated(),
        closing(_connected(url)) as another,
        cut_after(_ANSWER_S_MAX, session),
        cut_after(_ANSWER_S_MAX, another),
    ):
        is_shared = shares_sessions(session, another)
    if is_shared:
        raise StorageError(
            "the Notify database is reached through a pooler in transaction mode, where the lock of a mirror and its "
            f"replication fail: {WITHOUT_POOLER}"
        )


def _connected(url: str) -> Session:
    with translated():
        return postgres.connect(url, _SETTINGS, application_name="txmsg tailer", connect_timeout=10, **KEEPALIVES)


@contextmanager
def translated() -> Iterator[None]:
    """Translate errors of the driver: BrokerUnavailable where a retry can succeed, else StorageError."""
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
