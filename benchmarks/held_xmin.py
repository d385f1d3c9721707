"""Send, delivery and transaction rate while another session holds a snapshot that has read the messages.

Claim (docs/performance.md): after ten minutes >= 0.9 of the rates on a database where nobody does. Such a snapshot (a
report, a dump, a session forgotten in a debugger) keeps VACUUM from removing any row that was deleted since, which is
what makes queues that update and delete rows collapse.

Two databases on one server, with a broker each, work by turns: transactions (half message, commit: the rows of
half_message are what is deleted), sending, delivering. A snapshot holds back VACUUM only in its own database. Both are
analyzed before each turn, when the statistics say that half_message is empty. The ratios of the last third of the
turns count. The exit status is 1 if a message did not come, or came twice.

    python -m benchmarks.held_xmin [--quick] [--json] [--minutes M]
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import psycopg

from benchmarks.load import Arrivals, consume, run, send, send_transactions
from benchmarks.surroundings import Broker, broker_process, fresh_database, parser_of, private_server, progress_of
from benchmarks.turns import Compared, by_turns
from txmsg.broker.embedded import EmbeddedPostgres

TOPIC, GROUP = "bench.held", "held"
CALLERS = 256
MINUTES, MINUTES_QUICK = 10.0, 1.0
STEPS = 100


@dataclass(slots=True)
class Setup:
    """A database with its broker, and the messages received by the group."""

    url: str
    broker: Broker
    seconds: float
    sent: int = 0
    arrivals: Arrivals = field(default_factory=Arrivals)

    def turn(self) -> dict[str, float]:
        """Run transactions and plain sends for a time, then deliver all of them."""
        address = self.broker.address
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("analyze txmsg.half_message, txmsg.message")
        committed = len(run(send_transactions(address, TOPIC, CALLERS, self.seconds)))
        count = max(500, round(self.seconds * 50_000))
        sent_per_s = run(send(address, TOPIC, count))
        self.sent += committed + count
        return {
            "transactions": committed / self.seconds,
            "send": sent_per_s,
            "deliver": run(consume(address, TOPIC, GROUP, committed + count, self.arrivals)),
        }

    @property
    def wrong(self) -> int:
        """Return the number of missing and duplicated messages."""
        return self.arrivals.repeated + abs(self.sent - self.arrivals.count)


@contextmanager
def fresh_setup(server: EmbeddedPostgres, name: str, seconds: float) -> Iterator[Setup]:
    """Yield a fresh database with a broker."""
    url = fresh_database(server, name)
    with broker_process(url) as broker:
        yield Setup(url, broker, seconds)


@contextmanager
def snapshot_held(url: str) -> Iterator[None]:
    """Hold a snapshot in a session that has read all existing messages."""
    with psycopg.connect(url) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("select count(*), sum(length(body)) from txmsg.message")
        connection.execute("select count(*) from txmsg.half_message")
        yield
        connection.rollback()


def dead_rows(url: str) -> int:
    """Return the deleted rows of half_message not yet removed."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("analyze txmsg.half_message")
        connection.execute("select pg_stat_force_next_flush()")
        row = connection.execute(
            "select n_dead_tup from pg_stat_user_tables where relid = 'txmsg.half_message'::regclass"
        ).fetchone()
    assert row is not None
    return int(row[0])


def main() -> int:
    """Measure, print, and check that every message arrived once."""
    parser = parser_of(__doc__, f"the snapshot is held for {MINUTES_QUICK:g} minute")
    parser.add_argument("--minutes", type=float, help=f"how long the snapshot is held (default {MINUTES:g})")
    options = parser.parse_args()
    minutes = options.minutes or (MINUTES_QUICK if options.quick else MINUTES)
    seconds = max(0.2, min(4.0, minutes * 60 / 40))
    found: dict[str, Compared] = {}
    with (
        private_server() as server,
        fresh_setup(server, "held", seconds) as held,
        fresh_setup(server, "free", seconds) as free,
        progress_of("held xmin", STEPS) as step,
    ):
        by_turns(held.turn, free.turn, {})  # warms caches and plans, and makes rows that the snapshot can read
        with snapshot_held(held.url):
            began_at, steps = time.monotonic(), 0
            while (passed := (time.monotonic() - began_at) / (minutes * 60)) < 1:
                by_turns(held.turn, free.turn, found)
                while steps < passed * STEPS:
                    steps += 1
                    step()
            dead = dead_rows(held.url), dead_rows(free.url)
    turns = len(found["send"].rates)
    last = max(1, turns // 3)
    wrong = held.wrong + free.wrong
    for name, each in found.items():
        print(
            f"{name:13}{each.rate:10,.0f}/s   nothing held {each.reference:10,.0f}/s   "
            f"ratio {each.ratio:.3f}, of the last third {each.last(last):.3f}"
        )
    print(
        f"held for {minutes:g} min, {turns} turns of each; deleted halves that VACUUM had to leave: {dead[0]:,} "
        f"(nothing held: {dead[1]:,}); {wrong} messages missing or twice"
    )
    if options.json:
        figures = {key: value for name, each in found.items() for key, value in each.figures(name).items()}
        lasts = {f"{name}_ratio_last": round(each.last(last), 3) for name, each in found.items()}
        print(json.dumps({**figures, **lasts, "minutes": minutes, "turns": turns, "dead": dead, "wrong": wrong}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
