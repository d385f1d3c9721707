"""Outcomes whose callers no longer wait: which ones are in progress, how many there may be, and the handling of
failures.

A committed transaction's fate is sealed: if its outcome gets lost, the check-back gives the same answer. So no caller
needs to wait for the reply, but there is a bound, and outcomes in progress can be looked up. Knows no network and no
loop.
"""

from __future__ import annotations

from typing import Final

from txmsg.client.sending.batch import EndEntry
from txmsg.client.sending.half import Half
from txmsg.client.sending.outcome_log import is_contradiction, log_untold
from txmsg.message import TransactionState

UNTOLD_MAX = 1000
"""Outcomes in progress, at most: it bounds the number that a crash leaves to check-backs."""


_tests: Final[set[object]] = set()


def wait_for_all(test: object) -> None:
    """Have all calls of this process wait for each reply, so that a test finds what it has sent.

    Until `wait_no_more(test)`.
    """
    _tests.add(test)


def wait_no_more(test: object) -> None:
    """End what `wait_for_all(test)` began."""
    _tests.discard(test)


class UnreportedOutcomes:
    """The outcomes of one producer that are in progress. Any thread may add one; the loop settles them.

    count_max: with this many in progress, callers wait for the reply.
    """

    def __init__(self, count_max: int) -> None:
        self.count_max = count_max
        self._entries: dict[bytes, tuple[Half, TransactionState]] = {}
        self._in_trouble: set[bytes] = set()
        """The Notify databases whose last outcome failed."""

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def is_full(self) -> bool:
        """True if the next caller has to wait for the reply."""
        return len(self._entries) >= self.count_max or bool(_tests)

    def find_outcome(self, id_bytes: bytes) -> tuple[Half, TransactionState] | None:
        """Return the outcome of this transaction, if it is in progress."""
        return self._entries.get(id_bytes)

    def add(self, half: Half, state: TransactionState) -> EndEntry:
        """Return the entry to send for this outcome. Raises MisuseError if the state is not a TransactionState."""
        entry = EndEntry(half.id_bytes, state, _OutcomeWaiter(self, half, state))
        # No lock: assigning and removing one key of a dict are atomic, and each transaction has one outcome.
        self._entries[half.id_bytes] = (half, state)
        return entry

    def forget_outcome(self, half: Half) -> None:
        """Forget an outcome whose entry will not be sent."""
        self._entries.pop(half.id_bytes, None)

    def _settled(self, half: Half, state: TransactionState, error: BaseException | None) -> None:
        self.forget_outcome(half)
        if error is None:
            self._in_trouble.discard(half.shard)
        elif is_contradiction(state, error):
            log_untold(half.id_bytes, state, error)
        elif half.shard not in self._in_trouble:  # one line for an outage, not one for each transaction of it
            self._in_trouble.add(half.shard)
            log_untold(half.id_bytes, state, error)


class _OutcomeWaiter:
    """Takes the place of a caller that would wait."""

    __slots__ = ("_error", "_half", "_is_done", "_state", "_untold")

    def __init__(self, untold: UnreportedOutcomes, half: Half, state: TransactionState) -> None:
        self._untold = untold
        self._half = half
        self._state = state
        self._is_done = False
        self._error: BaseException | None = None

    def done(self) -> bool:
        return self._is_done

    def result(self) -> bytes:
        return b""

    def set_result(self, _: bytes, /) -> None:
        self._settle(None)

    def set_exception(self, exception: BaseException, /) -> None:
        self._settle(exception)

    def exception(self) -> BaseException | None:
        return self._error

    def _settle(self, error: BaseException | None) -> None:
        self._is_done = True
        self._error = error
        self._untold._settled(self._half, self._state, error)
