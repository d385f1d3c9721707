"""A starting broker waits for its database depending on the error that it met, not on the present state."""

from __future__ import annotations

import psycopg
import pytest

from txmsg.broker.migrate import may_pass
from txmsg.errors import StorageError

NOWHERE = "postgresql://notify@/notify?host=/nowhere"
"""An address whose ping reports "no response": then waiting helps."""
AT = 'connection failed: connection to server at "db", port 5432 failed: '


def met(cause: Exception) -> StorageError:
    error = StorageError("the Notify database cannot be used")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "text",
    [
        f"{AT}Connection refused\n\tIs the server running on that host and accepting TCP/IP connections?",
        f"{AT}server closed the connection unexpectedly\n\tThis probably means the server terminated abnormally",
        f"{AT}could not receive data from server: Connection reset by peer",
        f"{AT}FATAL:  the database system is starting up",
        f"{AT}FATAL:  the database system is shutting down",
        f"{AT}FATAL:  sorry, too many clients already",
        f"{AT}FATAL:  remaining connection slots are reserved for roles with the SUPERUSER attribute",
        "connection timeout expired",
        "failed to resolve host 'db': [Errno -2] Name or service not known",
        "consuming input failed: server closed the connection unexpectedly",
    ],
)
def test_an_unreachable_or_starting_server_is_waited_for(text: str) -> None:
    assert may_pass(met(psycopg.OperationalError(text)), "postgresql://notify@/notify?host=/nowhere&hostaddr=bad")


@pytest.mark.parametrize(
    "cause", [psycopg.errors.CannotConnectNow, psycopg.errors.AdminShutdown, psycopg.errors.TooManyConnections]
)
def test_a_session_ended_by_the_server_is_waited_for(cause: type[psycopg.Error]) -> None:
    assert may_pass(met(cause()), NOWHERE)


@pytest.mark.parametrize(
    "cause",
    [
        psycopg.errors.InsufficientPrivilege("permission denied for schema txmsg"),
        psycopg.errors.ReadOnlySqlTransaction("cannot execute CREATE SCHEMA in a read-only transaction"),
        psycopg.ProgrammingError("invalid connection option"),
        ValueError("no database error at all"),
    ],
    ids=lambda cause: type(cause).__name__,
)
def test_a_permanent_error_is_not_waited_for(cause: Exception) -> None:
    assert not may_pass(met(cause), NOWHERE)


@pytest.mark.parametrize("text", [f'{AT}FATAL:  database "notify" does not exist', f"{AT}ВАЖНО:  пароль не подошёл"])
def test_a_refusal_is_waited_for_only_while_the_server_accepts_no_connections(text: str, notify_url: str) -> None:
    assert not may_pass(met(psycopg.OperationalError(text)), notify_url)
    assert may_pass(met(psycopg.OperationalError(text)), NOWHERE)
