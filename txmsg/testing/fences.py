"""The contract of a `FenceStore` as tests: subclass `FenceStoreContract` in a module of tests of your own.

Every test runs against a real store, with checks on connections of their own, as in production.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar
from uuid import UUID, uuid4

import pytest

from txmsg.checker.fence.store import AsyncFenceStore, FenceStore
from txmsg.errors import TransactionRefused
from txmsg.message import TransactionId, TransactionState, new_transaction_id

__all__ = ["FenceStoreContract"]

T = TypeVar("T")

COMMIT, ROLLBACK, UNKNOWN = TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN
ANSWER_S_MAX = 30.0
"""Seconds after which a call counts as hanging."""
RACES = 20


class FenceStoreContract:
    """A class of tests. Subclass it as Test..., with `make_store`, `write`, `names` and preferably `interferences`.

    `write`, `names` and interferences may be `async def`, and are for an AsyncFenceStore. Prepare the database, for
    example an empty one, in fixtures of the subclass with autouse=True.
    """

    def make_store(self) -> FenceStore[Any] | AsyncFenceStore[Any]:
        """Return a new object for the same store, as another process would create it."""
        raise NotImplementedError("return your FenceStore")

    def write(self, opened: Any, name: str) -> Any:
        """Write an effect called `name` in the transaction. opened: the value that its context manager yields."""
        raise NotImplementedError("write something by which it is recognized")

    def names(self) -> Any:
        """Return the names of the committed effects, as seen on another connection."""
        raise NotImplementedError("return a collection of what `write` was given")

    def interferences(self) -> Mapping[str, Callable[[Any], Any]]:
        """Return ways in which code in a transaction can interfere, by name: functions of `opened` that do not raise.

        For example a commit in SQL, a rollback after which the code continues, an error that is caught, a statement
        that commits implicitly, or a transaction block of the driver.
        """
        return {}

    # ---- the tests

    def test_the_fence_id_stays(self) -> None:
        """The id is the same for every object of the store."""
        with self._faces() as (one, other):
            first = one.fence_id()
            assert isinstance(first, UUID), f"fence_id() is {first!r}, not a UUID"
            assert one.fence_id() == other.fence_id() == first, "fence_id() changes: it must be kept in the store"

    def test_a_committed_transaction_is_commit(self) -> None:
        """The outcome is COMMIT, also when it is asked for again."""
        with self._faces() as (one, other):
            transaction_id = new_transaction_id()
            with one.transaction(transaction_id) as opened:
                one.call(self.write, opened, "done")
            assert other.outcome(transaction_id) is COMMIT
            assert other.outcome(transaction_id) is COMMIT, "outcome() is not idempotent"
            assert set(one.call(self.names)) == {"done"}, "what has committed is not there"

    def test_an_exception_goes_out_unchanged_and_nothing_is_committed(self) -> None:
        """The exception leaves the block unchanged, and the outcome is ROLLBACK."""
        with self._faces() as (one, other):
            transaction_id, raised = new_transaction_id(), ZeroDivisionError()
            caught: BaseException | None = None
            try:
                with one.transaction(transaction_id) as opened:
                    one.call(self.write, opened, "undone")
                    raise raised
            except ZeroDivisionError as exc:
                caught = exc
            assert caught is raised, "transaction() must let the exception of its block out as it is"
            assert other.outcome(transaction_id) is ROLLBACK
            assert not set(one.call(self.names)), "effects of a block that raised are committed"

    def test_what_a_check_has_rolled_back_can_no_longer_begin(self) -> None:
        """A late transaction raises TransactionRefused, and leaves no effects."""
        with self._faces() as (one, other):
            late = new_transaction_id()
            assert other.outcome(late) is ROLLBACK
            with pytest.raises(TransactionRefused), one.transaction(late) as opened:
                one.call(self.write, opened, "late")
            assert other.outcome(late) is ROLLBACK, "an outcome that was told has changed"
            assert not set(one.call(self.names)), "a transaction has committed after its message was dropped"

    def test_an_id_is_used_once(self) -> None:
        """The second transaction raises TransactionRefused."""
        with self._faces() as (one, other):
            transaction_id = new_transaction_id()
            with one.transaction(transaction_id) as opened:
                one.call(self.write, opened, "first")
            with pytest.raises(TransactionRefused), other.transaction(transaction_id) as opened:
                other.call(self.write, opened, "second")
            assert one.outcome(transaction_id) is COMMIT
            assert set(one.call(self.names)) == {"first"}

    def test_a_running_transaction_is_unknown(self) -> None:
        """A check does not wait for its end."""
        with self._faces() as (one, other):
            transaction_id = new_transaction_id()
            with one.transaction(transaction_id) as opened:
                one.call(self.write, opened, "running")
                state = _soon(lambda: other.outcome(transaction_id), "outcome() of a running transaction")
                assert state is UNKNOWN, f"a transaction that may still commit is said to be {state.name}"
            assert other.outcome(transaction_id) is COMMIT

    def test_what_interferes_commits_all_or_raises(self) -> None:
        """Row and effects stay together, whatever the block does."""
        with self._faces() as (one, other):
            for what, interfere in self.interferences().items():
                transaction_id = new_transaction_id()
                before, after = f"before-{uuid4()}", f"after-{uuid4()}"
                has_returned = False
                try:
                    with one.transaction(transaction_id) as opened:
                        one.call(self.write, opened, before)
                        one.call(interfere, opened)
                        one.call(self.write, opened, after)
                    has_returned = True
                except Exception:  # noqa: BLE001 - which one it is, is up to the store
                    pass
                state, names = other.outcome(transaction_id), set(one.call(self.names))
                if has_returned:
                    assert state is COMMIT, f"{what}: the transaction ended as if committed, and is {state.name}"
                    assert {before, after} <= names, f"{what}: the message would be delivered, and effects are missing"
                assert state in (COMMIT, ROLLBACK), f"{what}: the transaction is over, and its outcome is {state.name}"
                assert (before in names) is (state is COMMIT), f"{what}: row and effects did not go together"

    def test_checks_at_once_agree(self) -> None:
        """Concurrent checks of a transaction that never began answer ROLLBACK or UNKNOWN."""
        with self._faces() as (one, other), ThreadPoolExecutor(4) as threads:
            for _ in range(RACES // 4):
                transaction_id = new_transaction_id()
                asked = [threads.submit(each.outcome, transaction_id) for each in (one, other, one, other)]
                states = {each.result(ANSWER_S_MAX) for each in asked} - {UNKNOWN}
                assert states <= {ROLLBACK}, f"nothing was ever begun, and checks say {states}"
                assert one.outcome(transaction_id) is ROLLBACK

    def test_a_transaction_and_a_check_at_once_agree(self) -> None:
        """The answer of a check holds, whichever was first."""
        with self._faces() as (one, other), ThreadPoolExecutor(2) as threads:
            for number in range(RACES):
                transaction_id, name = new_transaction_id(), f"race-{number}"
                # Both begin at the same moment, so that over the rounds either side is sometimes first.
                both = threading.Barrier(2)
                ran = threads.submit(self._race, one, transaction_id, name, both)
                asked = threads.submit(_after, both, other.outcome, transaction_id)
                told, has_returned = asked.result(ANSWER_S_MAX), ran.result(ANSWER_S_MAX)
                state = other.outcome(transaction_id)
                is_there = name in set(one.call(self.names))
                assert told in (state, UNKNOWN), f"a check said {told.name}, and now it is {state.name}"
                assert is_there is (state is COMMIT), f"the outcome is {state.name}; effects there: {is_there}"
                assert not has_returned or state is COMMIT, f"it ended as if committed, and is {state.name}"

    def _race(self, face: _Face, transaction_id: TransactionId, name: str, both: threading.Barrier) -> bool:
        both.wait(ANSWER_S_MAX)
        try:
            with face.transaction(transaction_id) as opened:
                face.call(self.write, opened, name)
        except Exception:  # noqa: BLE001 - refused, or a database that is locked: the outcome says
            return False
        return True

    @contextmanager
    def _faces(self) -> Iterator[tuple[_Face, _Face]]:
        """Yield two objects of the store; the loop of asynchronous ones runs on a thread."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name="fence-store-contract", daemon=True)
        thread.start()
        try:
            yield _Face(self.make_store(), loop), _Face(self.make_store(), loop)
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(ANSWER_S_MAX)
            loop.close()


class _Face:
    """A store of either kind, called by threads."""

    def __init__(self, store: FenceStore[Any] | AsyncFenceStore[Any], loop: asyncio.AbstractEventLoop) -> None:
        self._store = store
        self._loop = loop

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        result = function(*args)
        return self._awaited(result) if inspect.isawaitable(result) else result

    def fence_id(self) -> UUID:
        found: UUID = self.call(self._store.fence_id)
        return found

    def outcome(self, transaction_id: TransactionId) -> TransactionState:
        state: TransactionState = self.call(self._store.outcome, transaction_id)
        assert isinstance(state, TransactionState), f"outcome() is {state!r}, not a TransactionState"
        return state

    @contextmanager
    def transaction(self, transaction_id: TransactionId) -> Iterator[Any]:
        if isinstance(self._store, FenceStore):
            with self._store.transaction(transaction_id) as opened:
                yield opened
            return
        block = self._store.transaction(transaction_id)
        opened = self._awaited(block.__aenter__())
        try:
            yield opened
        except BaseException as exc:
            if not self._awaited(block.__aexit__(type(exc), exc, exc.__traceback__)):
                raise
        else:
            self._awaited(block.__aexit__(None, None, None))

    def _awaited(self, awaitable: Any) -> Any:
        async def wait() -> Any:
            return await awaitable

        return asyncio.run_coroutine_threadsafe(wait(), self._loop).result(ANSWER_S_MAX)


def _soon(call: Callable[[], T], what: str) -> T:
    """Return the result of a call on a thread of its own, so that a call that hangs fails the test."""
    found: list[T] = []
    thread = threading.Thread(target=lambda: found.append(call()), daemon=True)
    thread.start()
    thread.join(ANSWER_S_MAX)
    assert not thread.is_alive(), f"{what} waits for its end"
    assert found, f"{what} raised"
    return found[0]


def _after(barrier: threading.Barrier, ask: Callable[[TransactionId], T], transaction_id: TransactionId) -> T:
    barrier.wait(ANSWER_S_MAX)
    return ask(transaction_id)
