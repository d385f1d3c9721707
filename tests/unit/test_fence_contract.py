"""FenceStoreContract finds defects of a store: each is planted into the store of the how-to page."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.acceptance.user_project import ROOT, files_of
from txmsg import MisuseError, Producer, TransactionId, TransactionState, transactional_message
from txmsg.client.fence import FenceStore
from txmsg.client.flows.flow import LocalTransaction
from txmsg.message import new_transaction_id
from txmsg.testing import FenceStoreContract

_FILES = files_of(ROOT / "docs" / "how-to" / "other-databases.md")
_PAGE: dict[str, Any] = {"__name__": "order_fence"}
exec(compile(_FILES["order_fence.py"], "order_fence.py", "exec"), _PAGE)
OrderFence: Any = _PAGE["OrderFence"]


class OtherId(OrderFence):  # type: ignore[misc]
    def fence_id(self) -> UUID:
        return uuid4()


class CommitsRowFirst(OrderFence):  # type: ignore[misc]
    """A defect: the row is committed before the effects."""

    @contextmanager
    def transaction(self, transaction_id: TransactionId) -> Iterator[sqlite3.Connection]:
        with super().transaction(transaction_id):
            pass
        connection = self.connect()
        connection.execute("begin")
        try:
            yield connection
            connection.execute("commit")
        finally:
            connection.close()


class ContinuesWithoutRow(OrderFence):  # type: ignore[misc]
    """A defect: a late transaction continues without its row."""

    @contextmanager
    def transaction(self, transaction_id: TransactionId) -> Iterator[sqlite3.Connection]:
        connection = self.connect()
        connection.execute("begin")
        connection.execute("insert or ignore into fence values (?, 'commit')", [str(transaction_id)])
        try:
            yield connection
            connection.execute("commit")
        finally:
            connection.close()


class ChecksWithoutRow(OrderFence):  # type: ignore[misc]
    """A defect: a check leaves no row."""

    def outcome(self, transaction_id: TransactionId) -> TransactionState:
        connection = self.connect()
        found = connection.execute("select outcome from fence where id = ?", [str(transaction_id)]).fetchone()
        connection.close()
        return TransactionState(found[0]) if found else TransactionState.ROLLBACK


class SwallowsExceptions(OrderFence):  # type: ignore[misc]
    """A defect: an exception of the function ends in the block."""

    @contextmanager
    def transaction(self, transaction_id: TransactionId) -> Iterator[sqlite3.Connection]:
        with suppress(ZeroDivisionError), super().transaction(transaction_id) as connection:
            yield connection


class CommitsAnyTransaction(OrderFence):  # type: ignore[misc]
    """A defect: it commits any transaction."""

    @contextmanager
    def transaction(self, transaction_id: TransactionId) -> Iterator[sqlite3.Connection]:
        connection = self.connect()
        connection.execute("begin")
        try:
            try:
                connection.execute("insert into fence values (?, 'commit')", [str(transaction_id)])
            except sqlite3.IntegrityError as exc:
                raise _PAGE["TransactionRefused"](str(exc)) from exc
            yield connection
            connection.commit()
        finally:
            connection.close()


class Contract(FenceStoreContract):
    """The contract as on the page."""

    def __init__(self, kind: Any, path: Path) -> None:
        self.kind, self.path = kind, str(path / "orders.db")
        connection = sqlite3.connect(self.path)
        connection.execute("create table orders (name text)")
        connection.close()

    def make_store(self) -> FenceStore[Any]:
        store: FenceStore[Any] = self.kind(self.path)
        return store

    def write(self, opened: sqlite3.Connection, name: str) -> None:
        opened.execute("insert into orders values (?)", [name])

    def names(self) -> list[str]:
        connection = sqlite3.connect(self.path)
        found = [name for (name,) in connection.execute("select name from orders")]
        connection.close()
        return found

    def interferences(self) -> Any:
        return {"another transaction": lambda connection: [connection.execute("rollback"), connection.execute("begin")]}


@pytest.mark.parametrize(
    ("kind", "test"),
    [
        (OtherId, "test_the_fence_id_stays"),
        (CommitsRowFirst, "test_an_exception_goes_out_unchanged_and_nothing_is_committed"),
        (ContinuesWithoutRow, "test_what_a_check_has_rolled_back_can_no_longer_begin"),
        (ContinuesWithoutRow, "test_an_id_is_used_once"),
        (ChecksWithoutRow, "test_what_a_check_has_rolled_back_can_no_longer_begin"),
        (ChecksWithoutRow, "test_a_running_transaction_is_unknown"),
        (SwallowsExceptions, "test_an_exception_goes_out_unchanged_and_nothing_is_committed"),
        (CommitsAnyTransaction, "test_what_interferes_commits_all_or_raises"),
    ],
)
def test_every_planted_defect_is_found(kind: Any, test: str, tmp_path: Path) -> None:
    getattr(Contract(OrderFence, tmp_path), test)()
    (tmp_path / "planted").mkdir()
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        getattr(Contract(kind, tmp_path / "planted"), test)()


def test_a_store_must_be_both_listener_and_session_of_a_producer(tmp_path: Path) -> None:
    one, other = OrderFence(str(tmp_path / "one.db")), OrderFence(str(tmp_path / "other.db"))
    producer = Producer(group="orders", check_listener=one)

    def place(connection: sqlite3.Connection) -> None: ...

    transactional_message(producer, topic="order", session=one)(place)
    for session in (other, None, one.connect):
        with pytest.raises(MisuseError, match="give both the same FenceStore"):
            transactional_message(producer, topic="order", session=session)(place)
    with pytest.raises(MisuseError, match="needs a fence"):
        transactional_message(producer, topic="order", session=one, when_away="outbox")(place)


def test_a_store_that_swallows_an_exception_is_detected(tmp_path: Path) -> None:
    def fails(_: object) -> None:
        raise ZeroDivisionError

    with pytest.raises(MisuseError, match="hid an exception"):
        LocalTransaction(None, new_transaction_id(), "place").run(
            SwallowsExceptions(str(tmp_path / "orders.db")), fails
        )
