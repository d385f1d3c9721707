"""The caller of the call that is being answered, and its rights, for the code that finds and changes things."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple, Protocol

from txmsg.errors import PermissionDenied
from txmsg.wire.access.limits import Usage
from txmsg.wire.access.permissions import allows, denied
from txmsg.wire.access.principal import ANYONE, Principal
from txmsg.wire.access.rules import ALL_NAMES, Names, Right


class Caller(NamedTuple):
    """A principal's name, and the address that it calls from. Empty: this process itself."""

    name: str
    address: str


class Calling(Protocol):
    """An object that knows its caller, as a connection does."""

    @property
    def caller(self) -> Caller: ...

    @property
    def principal(self) -> Principal: ...

    @property
    def usage(self) -> Usage | None:
        """The use of the server by its user; None without authentication."""
        ...


class _KnownCaller(NamedTuple):
    caller: Caller
    principal: Principal = ANYONE
    usage: Usage | None = None


answering: ContextVar[Calling | None] = ContextVar("answering", default=None)
"""Set by the server in the task of each call. Not an argument: changes are made several layers below the method."""


def current_caller() -> Caller:
    """Return the caller of the call that is being answered."""
    calling = answering.get()
    return Caller("", "") if calling is None else calling.caller


def signature(claimed: str) -> str:
    """Return the author of a change, as it is stored: the user that calls, or `claimed` without authentication."""
    calling = answering.get()
    return claimed if calling is None or calling.principal is ANYONE else calling.principal.name


def current_usage() -> Usage | None:
    """Return the use of the server by the caller's user; None without authentication."""
    calling = answering.get()
    return None if calling is None else calling.usage


def may(right: Right, name: str) -> bool:
    """Return True if the caller may do this with a name that the call has found."""
    calling = answering.get()
    # Outside a call everything is allowed: this process itself acts.
    return calling is None or allows(calling.principal.rights, right, name)


def names_for(right: Right) -> Names:
    """Return the names for which `may` is true: a page that only left out rows would reveal their names in its
    cursor."""
    calling = answering.get()
    return ALL_NAMES if calling is None else calling.principal.rights.names(right)


def refusal(right: Right, name: str) -> PermissionDenied | None:
    """Return the error if `may` is false, else None."""
    if may(right, name):
        return None
    calling = answering.get()
    assert calling is not None, "nobody is denied outside a call"
    return denied(calling.principal.name, right, name, file=calling.principal.file)


def require(right: Right, name: str) -> None:
    """Raise PermissionDenied unless `may` is true."""
    if (error := refusal(right, name)) is not None:
        raise error


@contextmanager
def calling_as(caller: Caller) -> Iterator[None]:
    """Run the block for this caller: for changes without a server, such as commands on the database."""
    token = answering.set(_KnownCaller(caller))
    try:
        yield
    finally:
        answering.reset(token)
