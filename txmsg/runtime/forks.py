"""Resets txmsg's objects in a forked child to their state before first use.

A child has a copy of all memory, but only the thread that forked. So its copies of locks may never be released, no
thread runs its copies of loops, and its connections are the parent's. Knows none of these: each object resets itself.
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
        """Reset the object to its state before first use. Called in the child, before anything else runs there."""


_all: weakref.WeakSet[Renewed] = weakref.WeakSet()
_pid = os.getpid()
_log = EventLog(__name__)


def renew_in_children(each: Renewed) -> None:
    """Register the object: each child that is forked from this process renews it."""
    _all.add(each)


def keep(what: object) -> None:
    """Keep an object until the process ends: it is never finalized.

    Finalizers of the parent's objects must run in the parent only. In a child they would end the parent's coroutines,
    whose `finally` sends on its connections; and uvloop would remove these from the epoll instance, which both share.
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
    # Reset at the fork rather than by a comparison of process ids at each use (decision 0057): that would be part of
    # every path, and two threads that notice a fork at once would need a lock that may never be released.
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
