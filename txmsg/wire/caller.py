"""Who makes the call that is being answered: for the audit log, at the depth where changes are written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple, Protocol


class Caller(NamedTuple):
    """A principal's name, and the address that it calls from. Empty: it is this process itself."""

    name: str
    address: str


class Calling(Protocol):
    """What knows its caller, as a connection does."""

    @property
    def caller(self) -> Caller: ...


class _Known(NamedTuple):
    caller: Caller


answering: ContextVar[Calling | None] = ContextVar("answering", default=None)
"""Set by the server in the task of each call. Not an argument: a change is made several layers below its method."""


def current_caller() -> Caller:
    """Who makes the call that is being answered."""
    calling = answering.get()
    return Caller("", "") if calling is None else calling.caller


@contextmanager
def calling_as(caller: Caller) -> Iterator[None]:
    """What runs inside is done for this caller: for what needs no server, as commands on the database."""
    token = answering.set(_Known(caller))
    try:
        yield
    finally:
        answering.reset(token)
