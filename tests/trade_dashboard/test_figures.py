"""Figures in PostgreSQL: added by batches, read by the page."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from examples.trade_dashboard import figures
from examples.trade_dashboard.counting import Counted
from examples.trade_dashboard.figures import BadMessage, Deltas, Entry, Sums
from examples.trade_dashboard.latency import Latency
from tests.waiting import until

_AT = datetime(2026, 11, 11, 0, 0, 59, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


@pytest.fixture
def connection(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database_url, autocommit=True) as made:
        figures.create_tables(made)
        yield made


def epoch_ms(at: datetime) -> int:
    return round(at.timestamp() * 1000)


def deltas(batch_id: int, *paid: tuple[datetime, int], **more: Any) -> Deltas:
    """Return paid orders, each at its own time, of one seller in one province."""
    cents = [cents for _, cents in paid]
    ones = [1] * len(paid)
    return Deltas(
        batch_id=batch_id,
        messages=len(paid),
        started_at=_AT,
        orders=len(paid),
        paid=len(paid),
        turnover_cents=sum(cents),
        seconds=Sums([at.replace(microsecond=0) for at, _ in paid], ones, ones, cents),
        provinces=Sums(["tibet"], [len(paid)], [len(paid)], [sum(cents)]),
        categories=Sums(["food"], [len(paid)], [len(paid)], [sum(cents)]),
        sellers=Sums([f"food-{number}" for number in range(len(paid))], ones, ones, cents),
        commits={epoch_ms(at): 1 for at, _ in paid},
        **more,
    )


def added(connection: psycopg.Connection[Any], batch: Deltas, *, after_ms: int = 100) -> None:
    """Add a batch that is written so long after its begin."""
    with connection.transaction():
        figures.add(connection, batch, clock=lambda: _AT + after_ms * _MS)


def test_batches_are_added_up(connection: psycopg.Connection[Any]) -> None:
    minute = timedelta(minutes=1)
    added(connection, deltas(4, (_AT, 100), (_AT + timedelta(seconds=1), 30)))
    added(connection, deltas(5, (_AT, -20)), after_ms=250)
    found = figures.read(connection)
    total = found.total
    assert (total.orders, total.paid, total.turnover_cents, total.late_events) == (3, 3, 110, 0)
    assert (total.through_at, total.written_at) == (_AT + timedelta(seconds=1), _AT + 250 * _MS)
    assert found.seconds == (Entry(_AT, 2, 2, 80), Entry(_AT + timedelta(seconds=1), 1, 1, 30))
    midnight = datetime(2026, 11, 11, tzinfo=UTC)
    assert found.minutes == (Entry(midnight, 2, 2, 80), Entry(midnight + minute, 1, 1, 30))
    assert found.provinces == (Entry("tibet", 3, 3, 110),)
    assert found.categories == (Entry("food", 3, 3, 110),)
    assert found.sellers == (Entry("food-0", 2, 2, 80), Entry("food-1", 1, 1, 30))
    assert found.batch == figures.Batch(batch_id=5, at=_AT + 250 * _MS, messages=1, batch_ms=250)


def test_trade_of_1970_and_messages_read_late_are_counted(connection: psycopg.Connection[Any]) -> None:
    counted = Counted()
    body = {"event": "paid", "amount_cents": 5, "at_us": 1, "seller": "s", "province": "p", "category": "c"}
    counted.message(0, 0, json.dumps(body).encode(), epoch_ms(_AT) * 1_000)
    later = _AT + timedelta(days=60)
    waits = counted.waits(planned_at=later, started_at=later, read_at=later)
    added(connection, counted.deltas(1, _AT, waits))
    assert figures.read(connection).total.paid == 1
    row = connection.execute("select committed_ms, planned_ms from figures_batch").fetchone()
    assert row == (epoch_ms(_AT) - 1, 60 * 86_400_000)


def test_figures_are_empty_before_the_first_batch(connection: psycopg.Connection[Any]) -> None:
    figures.create_tables(connection)  # again, as each start does
    found = figures.read(connection)
    assert (found.total.orders, found.total.through_at, found.total.written_at) == (0, None, None)
    assert (found.seconds, found.sellers, found.batch) == ((), (), None)
    assert found.latency_now == Latency(events=0, p50_ms=None, p99_ms=None)


def test_late_events_count_and_are_counted_as_late(connection: psycopg.Connection[Any]) -> None:
    """An event is late if it is over 10 seconds older than the latest event of the batches before."""
    minute = timedelta(minutes=1)
    added(connection, deltas(0, (_AT, 1), (_AT - minute, 2)))
    assert figures.read(connection).total.late_events == 0, "nothing was counted before the first batch"
    added(connection, deltas(1, (_AT - timedelta(seconds=10), 4), (_AT - timedelta(seconds=11), 8)))
    added(connection, deltas(2, (_AT - minute, 16)))
    found = figures.read(connection)
    assert (found.total.late_events, found.total.turnover_cents, found.total.through_at) == (2, 31, _AT)
    assert sum(second.turnover_cents for second in found.seconds) == 31


def test_latency_from_commit_to_write_is_the_upper_bound_of_its_bucket(
    connection: psycopg.Connection[Any],
) -> None:
    for number, latency_ms in enumerate((98, 99, 101, 950)):
        added(connection, deltas(number, (_AT, 1)), after_ms=latency_ms)
    for number in range(96):
        added(connection, deltas(4 + number, (_AT, 1)), after_ms=150)
    found = figures.read(connection)
    assert found.latency == found.latency_now == Latency(events=100, p50_ms=158, p99_ms=158)
    added(connection, deltas(100, (_AT, 1), (_AT - 400 * _MS, 1)), after_ms=550)
    assert figures.read(connection).latency == Latency(events=102, p50_ms=158, p99_ms=1000)
    later = _AT + timedelta(seconds=30)
    added(connection, deltas(101, (later - 5 * _MS, 1)), after_ms=30_000)
    assert figures.read(connection).latency_now == Latency(events=1, p50_ms=5, p99_ms=5)
    assert figures.latency_between(connection, _AT, later).events == 102


def test_bad_messages_are_stored_up_to_a_limit(
    connection: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "BAD_KEPT_MAX", 3)
    bad = [BadMessage(0, offset, "no JSON", b"\0") for offset in range(5)]
    added(connection, deltas(0, bad=bad[:2], bad_messages=2))
    added(connection, deltas(1, (_AT, 1), bad=bad[2:], bad_messages=3))
    total = figures.read(connection).total
    assert (total.bad_messages, total.paid) == (5, 1)
    rows = connection.execute('select queue, "offset", reason, body from figures_bad order by 2').fetchall()
    assert rows == [(0, offset, "no JSON", b"\0") for offset in range(3)]


def test_listeners_are_notified_once_a_batch_can_be_read(
    connection: psycopg.Connection[Any], database_url: str
) -> None:
    with psycopg.connect(database_url, autocommit=True) as page:
        page.execute(f"listen {figures.CHANNEL}")
        with connection.transaction(force_rollback=True):
            figures.add(connection, deltas(0, (_AT, 1)))
        added(connection, deltas(0, (_AT, 5)))
        [heard] = page.notifies(timeout=30, stop_after=1)
        assert heard.channel == "figures"
        assert figures.read(page).total.turnover_cents == 5
        assert list(page.notifies(timeout=0)) == []


def test_page_reads_a_consistent_snapshot(connection: psycopg.Connection[Any], database_url: str) -> None:
    """Even if a batch is added after it has read only the totals."""
    added(connection, deltas(0, (_AT, 1)))
    waits = "select from pg_locks where not granted and relation = 'figures_second'::regclass"
    with (
        psycopg.connect(database_url, autocommit=True) as page,
        psycopg.connect(database_url, autocommit=True) as watcher,
        ThreadPoolExecutor() as threads,
    ):
        with connection.transaction():
            connection.execute("lock table figures_second")
            reading = threads.submit(figures.read, page)
            until(lambda: watcher.execute(waits).fetchone() is not None)
            figures.add(connection, deltas(1, (_AT, 2)), clock=lambda: _AT + 100 * _MS)
        found = reading.result(60)
    groups = (found.seconds, found.minutes, found.provinces, found.categories, found.sellers)
    sums = [sum(each.turnover_cents for each in group) for group in groups]
    assert [found.total.turnover_cents, *sums] == [1] * 6, "figures of several moments"


def test_old_seconds_are_deleted_and_minutes_are_kept(connection: psycopg.Connection[Any]) -> None:
    added(connection, deltas(999, (_AT, 1)))
    day_ms = 86_400_000
    added(connection, deltas(1000, (_AT + timedelta(days=3), 1)), after_ms=3 * day_ms)
    for table, expected in (("second", 1), ("latency", 1), ("batch", 1), ("minute", 2)):
        assert connection.execute(f"select count(*) from figures_{table}").fetchall() == [(expected,)], table
