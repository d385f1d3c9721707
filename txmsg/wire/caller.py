"""Who makes the call that is being answered, and what it may do: at the depth where things are found and changed."""

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
    """A principal's name, and the address that it calls from. Empty: it is this process itself."""

    name: str
    address: str


class Calling(Protocol):
    """What knows its caller, as a connection does."""

    @property
    def caller(self) -> Caller: ...

    @property
    def principal(self) -> Principal: ...

    @property
    def usage(self) -> Usage | None:
        """What its user takes of the server; None without authentication."""
        ...


class _KnownCaller(NamedTuple):
    caller: Caller
    principal: Principal = ANYONE
    usage: Usage | None = None


answering: ContextVar[Calling | None] = ContextVar("answering", default=None)
"""Set by the server in the task of each call. Not an argument: a change is made several layers below its method."""


def current_caller() -> Caller:
    """Who makes the call that is being answered."""
    calling = answering.get()
    return Caller("", "") if calling is None else calling.caller


def signature(claimed: str) -> str:
    """By whom a change is, as it is kept: the user that makes the call, or without authentication who it says to be."""
    calling = answering.get()
    return claimed if calling is None or calling.principal is ANYONE else calling.principal.name


def current_usage() -> Usage | None:
    """What its user takes of the server, and may take; None without authentication."""
    calling = answering.get()
    return None if calling is None else calling.usage


def may(right: Right, name: str) -> bool:
    """Whether who makes the call that is being answered may do this with what the call has found."""
    calling = answering.get()
    return calling is None or allows(calling.principal.rights, right, name)


def names_for(right: Right) -> Names:
    """The names for which `may`: for pages, where leaving out rows would leave their names in what tells the next."""
    calling = answering.get()
    return ALL_NAMES if calling is None else calling.principal.rights.names(right)


def refusal(right: Right, name: str) -> PermissionDenied | None:
    """The error unless `may`."""
    if may(right, name):
        return None
    calling = answering.get()
    assert calling is not None, "nobody is denied outside a call"
    return denied(calling.principal.name, right, name, file=calling.principal.file)


def require(right: Right, name: str) -> None:
    """Raises PermissionDenied unless `may`."""
    if (error := refusal(right, name)) is not None:
        raise error


@contextmanager
def calling_as(caller: Caller) -> Iterator[None]:
    """What runs inside is done for this caller: for what needs no server, as commands on the database."""
    token = answering.set(_KnownCaller(caller))
    try:
        yield
    finally:
        answering.reset(token)
