"""The other groups, and the database, while every message of one group fails for minutes.

Claim (DESIGN of delivery: docs/architecture.md): a group whose back end is wholly down pauses and probes with single
messages, so its backlog stays in the log: near no rows are written, and the other groups hardly notice.

Two databases on one server, with a broker each, work by turns: messages are sent, and a healthy group consumes them. In
one of them a second group, with its consumer in a process of its own, raises for every message, all the time; in the
other the same second group has nothing to do. Afterwards, for a while in which nothing is sent or consumed, the rows
that are written and the deliveries that fail are counted. The exit status is 1 if the healthy group missed a message or
got one twice, or if the backlog of the broken one is not whole.

    python -m benchmarks.backend_down [--quick] [--json] [--seconds S]
"""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import LiteralString

import psycopg

from benchmarks.load import Arrivals, consume, run, send
from benchmarks.surroundings import Broker, broker_process, fresh_database, parser_of, private_server, progress_of
from benchmarks.turns import Compared, by_turns
from txmsg.broker.embedded import EmbeddedPostgres
from txmsg.client import AsyncConsumer
from txmsg.message import ReceivedMessage

TOPIC, HEALTHY, BROKEN = "bench.down", "healthy", "broken"
SECONDS, SECONDS_QUICK = 180.0, 20.0
TABLES = ("retry", "cursor", "dead_letter", "consumer_group", "lease", "queue_lease", "broker", "member")


@dataclass(slots=True)
class Setup:
    """A database with its broker, and the messages received by the healthy group."""

    url: str
    broker: Broker
    sent: int = 0
    arrivals: Arrivals = field(default_factory=Arrivals)

    def turn(self, count: int) -> dict[str, float]:
        """Send so many messages, and let the healthy group consume them."""
        address = self.broker.address
        self.sent += count
        return {
            "send": run(send(address, TOPIC, count)),
            "deliver": run(consume(address, TOPIC, HEALTHY, count, self.arrivals)),
        }

    @property
    def wrong(self) -> int:
        return self.arrivals.repeated + abs(self.sent - self.arrivals.count)


@contextmanager
def fresh_setup(server: EmbeddedPostgres, name: str) -> Iterator[Setup]:
    """Yield a fresh database with a broker."""
    url = fresh_database(server, name)
    with broker_process(url) as broker:
        yield Setup(url, broker)


class BackEndDown(Exception):
    """Raised by the handler of the broken group."""


async def fail_forever(address: str) -> None:
    """Run the consumer of the broken group. It prints the number of failed deliveries once a second."""
    consumer = AsyncConsumer(address, group=BROKEN)
    failed = 0

    @consumer.subscribe(TOPIC)
    async def handle(_: ReceivedMessage) -> None:
        nonlocal failed
        failed += 1
        raise BackEndDown("the back end is down")

    async with consumer:
        while True:
            await asyncio.sleep(1)
            print(failed, flush=True)


@contextmanager
def broken_consumer(address: str) -> Iterator[subprocess.Popen[str]]:
    """Run `fail_forever` as a process."""
    command = [sys.executable, "-m", "benchmarks.backend_down", "--fail-forever", address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()


def next_count(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


@dataclass(frozen=True, slots=True)
class Written:
    """Counters of a database since its creation."""

    rows: int
    wal_bytes: int
    commits: int
    retries: int
    waiting: int
    """Unsettled messages of the broken group: those not passed by its cursor, and its retries."""


_ROWS = "select sum(n_tup_ins + n_tup_upd + n_tup_del) from pg_stat_user_tables where relname = any(%s)"
_COMMITS = "select xact_commit from pg_stat_database where datname = current_database()"
_WAITING = """
    select count(*) from txmsg.message m cross join txmsg.consumer_group g
      left join txmsg.cursor c on c.group_id = g.id and c.queue_id = m.queue
     where g.name = %s
       and (not coalesce(m.queue_offset < c.next_offset or c.acked @> m.queue_offset, false)
            or exists (select from txmsg.retry r where r.group_id = g.id and r.queue_id = m.queue
                                                   and r.queue_offset = m.queue_offset))
"""
"""In one statement: a message becomes a retry a moment before the cursor passes it."""


def written(url: str) -> Written:
    with psycopg.connect(url, autocommit=True) as connection:

        def one(statement: LiteralString, *parameters: object) -> int:
            row = connection.execute(statement, parameters).fetchone()
            assert row is not None
            return int(row[0])

        return Written(
            rows=one(_ROWS, list(TABLES)),
            wal_bytes=one("select pg_current_wal_lsn() - '0/0'"),
            commits=one(_COMMITS),
            retries=one("select count(*) from txmsg.retry"),
            waiting=one(_WAITING, BROKEN),
        )


def main() -> int:
    """Measure, print, and check that no message of either group was lost."""
    parser = parser_of(__doc__, f"the group fails for {2 * SECONDS_QUICK:g} seconds")
    parser.add_argument("--seconds", type=float, help=f"rates for so long, then rows for so long (default {SECONDS:g})")
    parser.add_argument("--count", type=int, default=100_000, help="messages in a turn (100,000)")
    parser.add_argument("--fail-forever", metavar="ADDRESS", help="be the consumer of the broken group")
    options = parser.parse_args()
    if options.fail_forever:
        logging.disable(logging.CRITICAL)  # a warning with a traceback for each delivery
        run(fail_forever(options.fail_forever))
    seconds = options.seconds or (SECONDS_QUICK if options.quick else SECONDS)
    found: dict[str, Compared] = {}
    with (
        private_server() as server,
        fresh_setup(server, "down") as down,
        fresh_setup(server, "up") as up,
        progress_of("backend down", 100) as step,
    ):
        for side in (down, up):
            side.turn(options.count)  # warms caches and plans
        with broken_consumer(down.broker.address) as process:
            began_at, steps = time.monotonic(), 0
            while (passed := (time.monotonic() - began_at) / seconds) < 1:
                by_turns(lambda: down.turn(options.count), lambda: up.turn(options.count), found)
                while steps < passed * 50:
                    steps += 1
                    step()
            while next_count(process) == 0:
                pass
            before, failed_before, at = written(down.url), next_count(process), time.monotonic()
            while (passed := (time.monotonic() - at) / seconds) < 1:
                failed = next_count(process)
                while steps < 50 + passed * 50:
                    steps += 1
                    step()
            took_s, after = time.monotonic() - at, written(down.url)
    lost = down.sent - after.waiting
    wrong = down.wrong + up.wrong + abs(lost)
    for name, each in found.items():
        print(f"{name:8}{each.rate:10,.0f}/s   no group failing {each.reference:10,.0f}/s   ratio {each.ratio:.3f}")
    rows_per_s = (after.rows - before.rows) / took_s
    failed_per_s = (failed - failed_before) / took_s
    print(
        f"while {after.waiting:,} messages wait for the broken group: {failed_per_s:,.1f} deliveries fail per second, "
        f"{rows_per_s:,.1f} rows are written, {(after.commits - before.commits) / took_s:,.1f} commits, "
        f"{(after.wal_bytes - before.wal_bytes) / took_s / 1024:,.1f} KiB of WAL; {after.retries:,} retry rows"
    )
    print(f"{wrong} messages missing or twice")
    if options.json:
        figures = {key: value for name, each in found.items() for key, value in each.figures(name).items()}
        print(
            json.dumps(
                {
                    **figures,
                    "failing_per_s": round(failed_per_s, 2),
                    "rows_per_s": round(rows_per_s, 2),
                    "retries": after.retries,
                    "waiting": after.waiting,
                    "wrong": wrong,
                }
            )
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
