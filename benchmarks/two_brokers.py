"""Gain from a second broker on the same database with a slow disk: each commit takes five milliseconds more.

No target; the figure is printed. commit_delay = 5000 has PostgreSQL wait before each flush of its log, as most disks
do. By turns with one broker and with two: transactions (half message, commit) of many callers, and plain sends in small
batches. The callers are shared by several producers, which know all brokers there are. The rows found in the table
afterwards must equal the number claimed, or the exit status is 1.

    python -m benchmarks.two_brokers [--quick] [--json]
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence

import psycopg

from benchmarks.load import run
from benchmarks.surroundings import Broker, broker_process, fresh_database, parser_of, private_server, progress_of
from benchmarks.turns import Compared, by_turns
from txmsg.broker.embedded import EmbeddedPostgres
from txmsg.client import AsyncProducer
from txmsg.message import Message, TransactionState

TOPIC = "bench.two"
QUEUES = 8
PRODUCERS, CALLERS = 4, 64
BATCH = 10
BODY = b"x" * 200
COMMIT_DELAY_US = 5000
WARM_S = 3.0
"""Seconds for queues to be spread: a broker prefers those that it already delivers."""


def slow_disk(server: EmbeddedPostgres) -> None:
    """Delay every commit, even without concurrent ones."""
    with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
        connection.execute(f"alter system set commit_delay = {COMMIT_DELAY_US}")
        connection.execute("alter system set commit_siblings = 0")
        connection.execute("select pg_reload_conf()")


async def rates(brokers: Sequence[Broker], seconds: float) -> tuple[dict[str, float], int]:
    """Return transactions and plain messages per second, and the number of messages."""
    addresses = [each.address for each in brokers]
    # Each begins with another broker, so that all are used from the start.
    producers = [
        AsyncProducer(addresses[i % len(addresses) :] + addresses[: i % len(addresses)], group="bench")
        for i in range(PRODUCERS)
    ]
    done = 0

    async def transactions(producer: AsyncProducer, until: float) -> None:
        nonlocal done
        while time.perf_counter() < until:
            half = await producer.half([Message(TOPIC, BODY)])
            await producer.end(half, TransactionState.COMMIT)
            done += 1

    async def sends(producer: AsyncProducer, until: float) -> None:
        nonlocal done
        while time.perf_counter() < until:
            await producer.send_many([Message(TOPIC, BODY)] * BATCH)
            done += BATCH

    found, total = {}, 0
    for name, call in (("transactions", transactions), ("send", sends)):
        done, began_at = 0, time.perf_counter()
        until = began_at + seconds
        await asyncio.gather(*(call(each, until) for each in producers for _ in range(CALLERS)))
        found[name] = done / (time.perf_counter() - began_at)
        total += done
    for each in producers:
        await each.close()
    return found, total


def count_messages(url: str) -> int:
    with psycopg.connect(url) as connection:
        row = connection.execute("select count(*) from txmsg.message").fetchone()
    assert row is not None
    return int(row[0])


def main() -> int:
    """Measure, print, and compare with the rows in the table."""
    parser = parser_of(__doc__, "few short turns")
    parser.add_argument("--turns", type=int, metavar="N", help="turns of each")
    parser.add_argument("--seconds", type=float, metavar="S", help="of each measurement")
    options = parser.parse_args()
    turns = options.turns or (3 if options.quick else 9)
    seconds = options.seconds or (2.0 if options.quick else 5.0)
    compared: dict[str, Compared] = {}
    claimed = 0
    with private_server() as server, progress_of("two brokers", turns) as step:
        slow_disk(server)
        url = fresh_database(server, "bench")
        with broker_process(url, "--topic-queues", str(QUEUES)) as first:

            def of(brokers: Sequence[Broker]) -> dict[str, float]:
                nonlocal claimed
                found, count = run(rates(brokers, seconds))
                claimed += count
                return found

            def with_two() -> dict[str, float]:
                with broker_process(url, "--topic-queues", str(QUEUES)) as second:
                    time.sleep(WARM_S)
                    return of([first, second])

            of([first])  # warms caches and plans
            for _ in range(turns):
                by_turns(with_two, lambda: of([first]), compared)
                step()
        rows = count_messages(url)
    for name, each in compared.items():
        print(
            f"{name:13}two brokers {each.rate:10,.0f}/s   one broker {each.reference:10,.0f}/s   ratio {each.ratio:.3f}"
        )
    print(f"commit_delay={COMMIT_DELAY_US}; rows in the table: {rows:,}, claimed: {claimed:,}")
    if options.json:
        figures = {key: value for name, each in compared.items() for key, value in each.figures(name).items()}
        print(json.dumps({**figures, "rows": rows, "claimed": claimed}))
    return 0 if rows == claimed else 1


if __name__ == "__main__":
    sys.exit(main())
