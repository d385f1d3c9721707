"""What becomes of txmsg's objects in a forked child: there each is as it was before its first use.

A child has a copy of all memory, but only the thread that forked. So its copies of locks may never be released, nobody
runs its copies of loops, and its connections are the parent's. Knows none of these: each object says itself what it was
before its first use.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import Protocol

from txmsg.errors import MisuseError
from txmsg.runtime.logs import EventLog

__all__ = ["Renewed", "check_fork_was_told", "keep", "renew_in_children"]


class Renewed(Protocol):
    """An object with threads, locks, connections, or an identity."""

    def _renew(self) -> None:
        """Makes it what it was before its first use. Called in the child, before anything else runs there."""


_all: weakref.WeakSet[Renewed] = weakref.WeakSet()
_pid = os.getpid()
_log = EventLog(__name__)


def renew_in_children(each: Renewed) -> None:
    """Has each child that is forked from this process renew the object."""
    _all.add(each)


def keep(what: object) -> None:
    """Keeps an object to the end of the process and beyond: it is never finalized.

    Finalizers are for the parent's objects to run in the parent. In a child they would end its coroutines, whose
    `finally` sends on its connections; and uvloop would take these out of the epoll instance, which both share.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(what))


def check_fork_was_told() -> None:
    """Raises MisuseError in a child that was forked without Python's knowledge."""
    if os.getpid() != _pid:
        raise MisuseError(
            f"process {os.getpid()} was forked from process {_pid} without Python's being told, so txmsg still has the "
            "parent's connections: use os.fork; in uWSGI, set py-call-osafterfork or lazy-apps"
        )


def _renew_all() -> None:
    global _pid  # noqa: PLW0603 - of the process
    _pid = os.getpid()
    for each in list(_all):
        try:
            keep(dict(vars(each)))
            each._renew()
        except Exception:  # noqa: BLE001 - the others are to be renewed all the same
            _log.exception(
                "process.fork_unusable",
                "a %(what)s of the process that process %(pid)d was forked from cannot be used here",
                what=type(each).__name__,
                pid=_pid,
            )


os.register_at_fork(after_in_child=_renew_all)
