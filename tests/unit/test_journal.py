"""The journal of a broker: its entries, and its behaviour when they cannot be stored."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest

from tests.closed_pool import closed_pool
from txmsg.broker.delivery.delivery import _journal_delivered as journal_delivered
from txmsg.broker.delivery.delivery_config import GroupDeliverySettings
from txmsg.broker.delivery.group import Group, GroupQueueReader
from txmsg.broker.delivery.retries import Retries, RetryOutcome
from txmsg.broker.delivery.values import MessageBatch, Receipt
from txmsg.broker.delivery.window import BEHIND, DeliveryFailure, InFlightWindow
from txmsg.broker.delivery.writer import _journal_outcomes as journal_outcomes
from txmsg.broker.incarnation import Incarnation
from txmsg.broker.journal import JournalBuffer, JournalEvent, JournalWriter
from txmsg.broker.store import journal as store
from txmsg.broker.store.rows import RetryKey
from txmsg.errors import BrokerUnavailable, StorageError
from txmsg.message import Offset, QueueId, QueueNumber, new_transaction_id
from txmsg.runtime.backoff import Backoff

NOW = 100.0


def journal(entries_max: int = 100) -> JournalBuffer:
    """Return the journal of a broker in which topic t, with queue 1, has one."""
    noted = JournalBuffer(entries_max=entries_max, monotonic=lambda: NOW)
    noted.queues, noted.topics = frozenset({1}), frozenset({"t"})
    return noted


def test_only_topics_with_a_journal_are_recorded() -> None:
    noted = journal()
    noted.note(JournalEvent.DELIVERED, 2, [0], "mail")
    noted.note_check("other", new_transaction_id(), NOW, group="shop", by="c", attempt=1, answer="COMMIT")
    assert noted.waiting == 0
    noted.note(JournalEvent.DELIVERED, 1, [0], "mail")
    noted.note_check("t", new_transaction_id(), NOW, group="shop", by="c", attempt=1, answer="COMMIT")
    assert [entry.event for entry in noted.take_entries(10)] == ["delivered", "check"]


@pytest.mark.parametrize(
    ("offsets", "runs"),
    [
        ([], []),
        ([7], [(7, 7)]),
        ([5, 3, 4], [(3, 5)]),
        ([1, 2, 4, 6, 7], [(1, 2), (4, 4), (6, 7)]),
        (range(1025), [(0, 1023), (1024, 1024)]),
    ],
)
def test_consecutive_offsets_share_one_entry(offsets: list[int], runs: list[tuple[int, int]]) -> None:
    noted = journal()
    noted.note(JournalEvent.ACKNOWLEDGED, 1, offsets, "mail")
    assert [(entry.first_offset, entry.last_offset) for entry in noted.take_entries(10)] == runs


def test_entries_beyond_the_bound_are_counted_and_the_count_is_written() -> None:
    noted = journal(entries_max=2)
    noted.note(JournalEvent.DELIVERED, 1, [1, 3, 5, 7, 9], "mail")
    assert (noted.waiting, noted.lost) == (2, 3)
    taken = noted.take_entries(10)
    assert [(entry.event, entry.first_offset, entry.entries) for entry in taken] == [
        ("delivered", 1, None),
        ("delivered", 3, None),
        ("lost", None, 3),
    ]
    noted.put_back(taken)  # the database was away
    assert noted.take_entries(10) == taken
    noted.told(taken)
    assert noted.take_entries(10) == []
    assert noted.lost == 3


def test_returned_entries_are_written_first() -> None:
    noted = journal()
    noted.note(JournalEvent.DELIVERED, 1, [1, 3, 5], "mail")
    first = noted.take_entries(2)
    noted.put_back(first)
    assert [entry.first_offset for entry in noted.take_entries(10)] == [1, 3, 5]


def test_after_a_database_restore_entries_are_lost_until_topics_are_read() -> None:
    noted = journal()
    noted.note(JournalEvent.DELIVERED, 1, [1], "mail")
    noted.forget_entries()
    noted.note(JournalEvent.DELIVERED, 1, [2], "mail")
    assert [(entry.event, entry.entries) for entry in noted.take_entries(10)] == [("lost", 1)]


def test_foreign_texts_are_stored_in_a_form_that_the_database_accepts() -> None:
    noted = journal()
    noted.note(JournalEvent.REFUSED, 1, [1], "mail", by="a\0b", detail="\ud800" + "x" * 5000)
    (entry,) = noted.take_entries(1)
    assert entry.actor == "a\\0b"
    assert entry.detail is not None
    assert entry.detail.startswith("?x")
    assert len(entry.detail) == 2000


class _Unread(tuple[int, ...]):
    """Offsets that must not be read."""

    __slots__ = ()

    def __iter__(self) -> Iterator[int]:
        raise AssertionError


class _Unasked(Backoff):
    """Delays that must not be computed."""

    def delay_s(self, attempt: int, asked_s: float | None = None, *, is_least: bool = False) -> float | None:
        raise AssertionError


def test_deliveries_and_failures_of_topics_without_a_journal_cost_nothing() -> None:
    noted = journal()
    group = Group(1, "mail", Retries(), settings=GroupDeliverySettings(backoff=_Unasked()))
    batch = MessageBatch("other", QueueNumber(0), Receipt(2, 1, 1, _Unread([5])), [])
    journal_delivered(noted, group, "c", [batch])
    feed = GroupQueueReader(group, "other", QueueNumber(0), QueueId(2), 1, InFlightWindow(0))
    outcomes = {RetryKey(QueueId(2), Offset(7)): RetryOutcome(2, DeliveryFailure("bad"))}
    journal_outcomes(noted, group, [(feed, {5: DeliveryFailure("bad")})], outcomes)
    assert noted.waiting == 0


def test_deliveries_and_failures_are_recorded_by_attempt() -> None:
    noted = journal()
    group = Group(1, "mail", Retries(), settings=GroupDeliverySettings(backoff=Backoff(delays_s=(3.0,), retries_max=1)))
    journal_delivered(
        noted, group, "c", [MessageBatch("t", QueueNumber(0), Receipt(1, 1, 1, [4, 5, 6]), [], [1, 2, 1])]
    )
    feed = GroupQueueReader(group, "t", QueueNumber(0), QueueId(1), 1, InFlightWindow(0))
    journal_outcomes(
        noted,
        group,
        [(feed, {5: DeliveryFailure("bad"), 6: BEHIND})],
        {
            RetryKey(QueueId(1), Offset(7)): RetryOutcome(2, DeliveryFailure("bad")),
            RetryKey(QueueId(1), Offset(8)): RetryOutcome(2, None),
        },
    )
    assert [(each.event, each.first_offset, each.attempt, each.delay_s) for each in noted.take_entries(10)] == [
        ("delivered", 4, 1, None),
        ("delivered", 6, 1, None),
        ("delivered", 5, 2, None),
        ("retry", 5, None, 3.0),
        ("retry", 6, None, None),
        ("dead", 7, 2, None),
    ]


# ---- writing


def writer(
    noted: JournalBuffer, monkeypatch: pytest.MonkeyPatch, write: Callable[..., Awaitable[None]]
) -> tuple[JournalWriter, Incarnation]:
    """Return a journal writer whose database answers as `write` does, and its incarnation."""
    monkeypatch.setattr(store, "write", write)
    pool = closed_pool()
    return JournalWriter(pool, noted), pool.incarnation


@pytest.mark.parametrize("error", [BrokerUnavailable("away"), RuntimeError("not foreseen")])
async def test_entries_that_could_not_be_written_are_kept(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    async def write(*_: Any) -> None:
        raise error

    noted = journal()
    noted.note(JournalEvent.DELIVERED, 1, [1, 3], "mail")
    writing, _ = writer(noted, monkeypatch, write)
    with pytest.raises(type(error)):
        await writing.write_once()
    assert (noted.waiting, noted.lost) == (2, 0)


async def test_entries_that_a_stop_had_no_time_to_write_are_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def write(*_: Any) -> None:
        await asyncio.Event().wait()

    noted = journal()
    noted.note(JournalEvent.DELIVERED, 1, [1, 3], "mail")
    writing, _ = writer(noted, monkeypatch, write)
    await writing.close(0.0)
    assert noted.waiting == 2
    assert "2 entries of the journal were not written" in caplog.text


@pytest.mark.parametrize("error", [StorageError("not its owner"), psycopg.errors.CheckViolation("bad")])
async def test_refused_entries_are_counted_as_lost(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    async def write(*_: Any) -> None:
        raise error

    noted = journal()
    noted.note(JournalEvent.DELIVERED, 1, [1, 3], "mail")
    writing, _ = writer(noted, monkeypatch, write)
    await writing.write_once()
    assert (noted.waiting, noted.lost) == (0, 2)


async def test_entries_being_written_during_a_database_restore_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    first = UUID(int=1)

    async def write(*_: Any) -> None:
        incarnation.end_incarnation(first, "it went back")
        raise BrokerUnavailable("another incarnation")

    noted = journal()
    writing, incarnation = writer(noted, monkeypatch, write)
    incarnation.begin_incarnation(first, UUID(int=7))
    noted.note(JournalEvent.DELIVERED, 1, [1, 3], "mail")
    with pytest.raises(BrokerUnavailable):
        await writing.write_once()
    assert (noted.waiting, noted.lost) == (0, 2)
