"""Outcomes that go out while their callers have gone on: which they are, how many there may be, and what fails.

A committed transaction's fate is sealed: if its outcome gets lost, the check-back says the same. So nobody needs to
wait for the reply, but there is a bound, and what is under way can be asked for. Knows no network and no loop.
"""

from __future__ import annotations

from typing import Final

from txmsg.client.sending.batch import EndEntry
from txmsg.client.sending.half import Half
from txmsg.client.sending.outcome_log import is_contradiction, log_untold
from txmsg.message import TransactionState

UNTOLD_MAX = 1000
"""What a crash leaves to check-backs is bounded by this."""


_tests: Final[set[object]] = set()
"""Who has all callers of this process wait."""


def wait_for_all(test: object) -> None:
    """Has callers wait for each reply, so that a test finds what it has sent; until `wait_no_more(test)`."""
    _tests.add(test)


def wait_no_more(test: object) -> None:
    """The end of `wait_for_all`."""
    _tests.discard(test)


class Untold:
    """The outcomes of one producer that are under way. Any thread may add one; the loop settles them.

    count_max: beyond so many, callers wait for the reply.
    """

    def __init__(self, count_max: int = UNTOLD_MAX) -> None:
        self._count_max = count_max
        self._entries: dict[bytes, tuple[Half, TransactionState]] = {}
        self._is_in_trouble = False

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def is_full(self) -> bool:
        """Whether the next caller is to wait for the reply."""
        return len(self._entries) >= self._count_max or bool(_tests)

    def find(self, id_bytes: bytes) -> tuple[Half, TransactionState] | None:
        """The outcome of this transaction, if it is under way."""
        return self._entries.get(id_bytes)

    def add(self, half: Half, state: TransactionState) -> EndEntry:
        """What is to be sent for it. Raises MisuseError for a state that is none."""
        entry = EndEntry(half.id_bytes, state, _Noting(self, half.id_bytes, state))
        self._entries[half.id_bytes] = (half, state)
        return entry

    def _settled(self, id_bytes: bytes, state: TransactionState, error: BaseException | None) -> None:
        self._entries.pop(id_bytes, None)
        if error is None:
            self._is_in_trouble = False
        elif is_contradiction(state, error):
            log_untold(id_bytes, state, error)
        elif not self._is_in_trouble:  # one line for an outage, not one for each transaction of it
            self._is_in_trouble = True
            log_untold(id_bytes, state, error)


class _Noting:
    """Takes the place of a caller that waits."""

    __slots__ = ("_error", "_id_bytes", "_is_done", "_state", "_untold")

    def __init__(self, untold: Untold, id_bytes: bytes, state: TransactionState) -> None:
        self._untold = untold
        self._id_bytes = id_bytes
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
        self._untold._settled(self._id_bytes, self._state, error)
