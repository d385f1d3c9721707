"""Latency of the figures of a day, from the records of the dashboard's database and the page."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import psycopg

from examples.trade_dashboard import figures
from examples.trade_dashboard.figures import Deltas, Waits
from txmsg.ops.demo.trades.figure_latency import Percentiles, times_since
from txmsg.ops.demo.trades.watching import Seen

_AT = datetime(2026, 11, 11, tzinfo=UTC)


def _at(ms: int) -> datetime:
    return _AT + timedelta(milliseconds=ms)


def _write(url: str, batch_id: int, traded_ms: int, started_ms: int, written_ms: int, *, messages: int) -> None:
    """Write a batch of trades of one moment, planned 20 ms before it is started, and read 30 ms after."""
    waits = Waits(committed_ms=10, planned_ms=started_ms - traded_ms - 30, started_ms=20, read_ms=30)
    commits = {int(_at(traded_ms).timestamp() * 1000): messages}
    deltas = Deltas(batch_id=batch_id, messages=messages, started_at=_at(started_ms), waits=waits, commits=commits)
    with psycopg.connect(url) as connection:
        figures.create_tables(connection)
        figures.add(connection, deltas, clock=lambda: _at(written_ms))


def test_waits_are_weighted_by_trades_and_end_at_the_first_push_of_the_batch(database_url: str) -> None:
    _write(database_url, 0, traded_ms=-900, started_ms=-300, written_ms=-100, messages=1_000)
    _write(database_url, 1, traded_ms=0, started_ms=100, written_ms=200, messages=99)
    _write(database_url, 2, traded_ms=150, started_ms=400, written_ms=480, messages=1)
    times = times_since(
        database_url, _AT, [Seen(_at(-100), _at(0)), Seen(_at(200), _at(250)), Seen(_at(480), _at(489))]
    )
    assert times.batch == Percentiles(80, 100)
    assert times.stored == Percentiles(200, 200)
    assert times.waits == {
        "committed": Percentiles(10, 10),
        "planned": Percentiles(70, 70),
        "started": Percentiles(20, 20),
        "read": Percentiles(30, 30),
        "stored": Percentiles(70, 70),
        "pushed": Percentiles(50, 50),
    }


def test_batch_never_pushed_to_the_page_has_no_page_latency(database_url: str) -> None:
    _write(database_url, 1, traded_ms=0, started_ms=100, written_ms=200, messages=1)
    times = times_since(database_url, _AT, [Seen(_at(100), _at(150))])
    assert times.page == Percentiles(None, None)
    assert times.stored == Percentiles(200, 200)
    assert "pushed" not in times.waits
