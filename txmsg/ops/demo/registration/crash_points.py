"""Kills a service process at points of the flow. Hooks of SQLAlchemy and of the producer: service.py knows none.

    1 half message stored
    2 local transaction: fence row, user row
                                                <- BEFORE_COMMIT  nothing happened: the check must say ROLLBACK
      COMMIT
                                                <- AFTER_COMMIT   committed, but not reported: the check must say COMMIT
    3 EndTransactions on its way                <- WHILE_TELLING  either the broker heard it, or a check says COMMIT

A process that is armed dies at the next passage, whichever request makes it; its other requests die with it.
"""

from __future__ import annotations

import enum
import os
import random
import signal
import threading

from sqlalchemy import event
from sqlalchemy.orm import Session, sessionmaker

from txmsg import Producer, TransactionState
from txmsg.client.sending.half import Half

TELLING_S_MAX = 0.004
"""While telling: SIGKILL comes at a random moment of this many seconds, which is about what the call takes."""


class CrashPoint(enum.Enum):
    BEFORE_COMMIT = "before-commit"
    AFTER_COMMIT = "after-commit"
    WHILE_TELLING = "while-telling"


class Fuse:
    """Kills this process the next time any of its requests passes the armed point."""

    def __init__(self) -> None:
        self._armed: CrashPoint | None = None

    def arm(self, point: CrashPoint) -> None:
        self._armed = point

    def passing(self, point: CrashPoint) -> None:
        if self._armed is not point:
            return
        if point is CrashPoint.WHILE_TELLING:
            threading.Timer(random.uniform(0, TELLING_S_MAX), _die).start()
        else:
            _die()


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def install(session_factory: sessionmaker[Session], producer: Producer) -> Fuse:
    """Puts the three points into the flow of this process. Sessions of other factories pass none."""
    fuse = Fuse()

    @event.listens_for(session_factory, "before_commit")
    def before_commit(session: Session) -> None:
        if not session.in_nested_transaction():
            fuse.passing(CrashPoint.BEFORE_COMMIT)

    @event.listens_for(session_factory, "after_commit")
    def after_commit(session: Session) -> None:
        fuse.passing(CrashPoint.AFTER_COMMIT)

    def before_end(half: Half, state: TransactionState) -> None:
        if state is TransactionState.COMMIT:
            fuse.passing(CrashPoint.WHILE_TELLING)

    producer.hooks.before_end = before_end
    return fuse
