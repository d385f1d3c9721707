"""Operations, which take longer than a request: they continue in the console, show progress, and can be stopped."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final

from txmsg.errors import MisuseError, TxmsgError
from txmsg.runtime.logs import EventLog

_log = EventLog(__name__)

RUNNING_MAX: Final = 4
_KEPT_MAX: Final = 50


@dataclass(slots=True, kw_only=True)
class ConsoleOperation:
    """An operation. state: running, stopping, stopped, done or failed."""

    id: int
    title: str
    database: str
    owner: str
    """The visitor who began it. Others do not see it."""
    total: int
    done: int = 0
    state: str = "running"
    error: str = ""
    began_at: float = field(default_factory=time.monotonic)
    took_s: float | None = None
    ended: Future[None] = field(default_factory=Future, repr=False)
    """Done when it makes no more calls."""

    @property
    def is_over(self) -> bool:
        """True if it has ended."""
        return self.state not in {"running", "stopping"}

    @property
    def seconds(self) -> float:
        """Seconds for which it has run."""
        return time.monotonic() - self.began_at if self.took_s is None else self.took_s

    def stop(self) -> None:
        """End it after the current step. Finished steps are kept."""
        if self.state == "running":
            self.state = "stopping"


class ConsoleOperations:
    """All operations of a console; old finished ones are dropped when there are many."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._by_id: dict[int, ConsoleOperation] = {}

    def of(self, owners: Collection[str]) -> list[ConsoleOperation]:
        """Return the operations of these owners, the newest first."""
        return [each for each in reversed(self._by_id.values()) if each.owner in owners]

    def find_operation(self, number: int, owners: Collection[str]) -> ConsoleOperation | None:
        """Return an operation by its id; None if it is not kept, or has another owner."""
        found = self._by_id.get(number)
        return found if found is not None and found.owner in owners else None

    def start(
        self, title: str, *, database: str, owner: str, total: int, steps: Callable[[], Iterator[int]]
    ) -> ConsoleOperation:
        """Run `steps` on a thread: each step yields how many more are done. Raises MisuseError while too many run."""
        if sum(not each.is_over for each in self._by_id.values()) >= RUNNING_MAX:
            raise MisuseError(f"{RUNNING_MAX} operations are running: wait until one has ended, or stop one")
        operation = ConsoleOperation(id=next(self._numbers), title=title, database=database, owner=owner, total=total)
        operation.ended.set_running_or_notify_cancel()  # who waits for it cannot cancel it
        self._by_id[operation.id] = operation
        # RUNNING_MAX is below _KEPT_MAX, so one that has ended is always found.
        while len(self._by_id) > _KEPT_MAX:
            del self._by_id[next(number for number, each in self._by_id.items() if each.is_over)]
        threading.Thread(target=_run, args=(operation, steps), name="txmsg-operation", daemon=True).start()
        return operation

    def stop(self) -> None:
        """Stop all operations, at the end of the console."""
        for each in self._by_id.values():
            each.stop()


def _run(operation: ConsoleOperation, steps: Callable[[], Iterator[int]]) -> None:
    try:
        for done in steps():
            operation.done += done
            if operation.state == "stopping":
                break
        operation.state = "stopped" if operation.state == "stopping" else "done"
    except TxmsgError as exc:
        operation.state, operation.error = "failed", str(exc)
    except Exception as exc:  # noqa: BLE001 - the root of a thread
        _log.exception("console.operation_failed", "an operation failed: %(title)s", title=operation.title)
        operation.state, operation.error = "failed", f"{type(exc).__name__}: {exc}"
    finally:
        operation.took_s = time.monotonic() - operation.began_at
        operation.ended.set_result(None)
