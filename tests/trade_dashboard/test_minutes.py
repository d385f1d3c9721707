"""Minutes are closed once; later events are corrections, and none is left out."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from examples.trade_dashboard import minutes
from examples.trade_dashboard.figures import LATE_AFTER_S, Deltas, Sums

NOON = datetime(2026, 11, 11, 12, tzinfo=UTC)
NOW = NOON + timedelta(days=1)


def paid(batch_id: int, events: dict[float, int]) -> Deltas:
    """Return a batch of payments, given as cents by seconds after noon."""
    at = {seconds: NOON + timedelta(seconds=seconds) for seconds in events}
    cents = list(events.values())
    whole = [each.replace(microsecond=0) for each in at.values()]
    return Deltas(
        batch_id=batch_id,
        messages=len(events),
        started_at=NOON,
        seconds=Sums(whole, [0] * len(cents), [1] * len(cents), cents),
        commits={round(each.timestamp() * 1000): 1 for each in at.values()},
    )


@pytest.fixture
def connection(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database_url, autocommit=True) as made:
        for _ in range(2):
            minutes.create_tables(made)  # as each start does
        yield made


def report(connection: psycopg.Connection[Any]) -> dict[float, tuple[int, int, int, int]]:
    """Return by minute after noon: cents when published, corrections, payments, cents now."""
    rows = connection.execute(
        "select minute, published_cents, corrections, paid, turnover_cents from minute_report order by 1"
    ).fetchall()
    return {(minute - NOON) / timedelta(minutes=1): tuple(rest) for minute, *rest in rows}


def still_open(connection: psycopg.Connection[Any]) -> list[int]:
    return [cents for (cents,) in connection.execute("select turnover_cents from minute_open order by minute")]


def test_minute_is_published_once_and_corrected_by_late_events(connection: psycopg.Connection[Any]) -> None:
    def add(deltas: Deltas) -> None:
        minutes.add(connection, deltas, clock=lambda: NOW)

    add(paid(0, {5: 100, 50: 50}))
    add(paid(1, {60 + LATE_AFTER_S - 0.001: 7}))
    assert report(connection) == {}, "it may still come in time"
    add(paid(2, {59: 1, 60 + LATE_AFTER_S: 8}))
    assert report(connection) == {0: (151, 0, 3, 151)}
    assert still_open(connection) == [15]
    add(paid(3, {30: 20, 31: -4, 65: 3}))
    add(paid(4, {40: 1}))
    assert report(connection) == {0: (151, 2, 6, 168)}
    assert still_open(connection) == [18]
    closed = connection.execute("select turnover_cents, closed_at from minute_closed").fetchall()
    assert closed == [(151, NOW)], "what was published has changed"


def test_late_event_of_an_unpublished_minute_is_a_correction(connection: psycopg.Connection[Any]) -> None:
    minutes.add(connection, paid(0, {600: 5}))
    minutes.add(connection, paid(1, {1: 9, 600: 1, 300: 0}))
    assert report(connection) == {0: (0, 1, 1, 9), 5: (0, 1, 1, 0)}
    assert still_open(connection) == [6]


def test_a_batch_without_any_event_changes_nothing(connection: psycopg.Connection[Any]) -> None:
    minutes.add(connection, paid(0, {600: 5}))
    minutes.add(connection, paid(1, {}))
    assert still_open(connection) == [5]
