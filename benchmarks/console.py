"""Latency of the console's overview with many groups, beside an empty database.

The claim: with 10,000 groups it answers in under 300 ms (the p99 is compared). The groups are filled in by SQL, each
with cursors in all queues of one topic, and behind by some messages; the broker and the console are processes of their
own, which poll as they do for a browser. One document is asked for after the other, in turns with the empty database.
The exit status is 1 if an overview does not come to say how many groups there are, or that there are more than have
figures of their own.

    python -m benchmarks.console [--quick] [--json]
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import ExitStack
from http.client import HTTPConnection, HTTPResponse
from statistics import quantiles

import psycopg

from benchmarks.surroundings import (
    broker_process,
    console_process,
    fresh_database,
    parser_of,
    private_server,
    progress_of,
)

TOPICS = 200
QUEUES = 4
KEPT = 20
"""Messages in each queue."""
SHOWN_S_MAX = 120.0
PAUSE_S = 0.05
TARGET_MS = 300
_FILL = """
with topic as (
    insert into txmsg.topic (name, queue_count, ordered_queues)
    select 'bench.console.' || n, %(queues)s, %(queues)s from generate_series(0, %(topics)s - 1) n returning id
)
insert into txmsg.queue (topic_id, number) select id, n from topic, generate_series(0, %(queues)s - 1) n;

insert into txmsg.message (segment, queue, queue_offset, transaction_id, n, body, born_at)
select s.id, q.id, n, gen_random_uuid(), 0, 'body', now()
  from txmsg.segment s, txmsg.queue q, generate_series(0, %(kept)s - 1) n where s.state = 'open';

insert into txmsg.consumer_group (name) select 'console-group-' || n from generate_series(1, %(groups)s) n;

insert into txmsg.cursor (group_id, queue_id, next_offset, epoch)
select g.id, q.id, g.id %% (%(kept)s + 1), 0
  from txmsg.consumer_group g
  join (select t.id, row_number() over (order by id) - 1 as place from txmsg.topic t) t on t.place = g.id %% %(topics)s
  join txmsg.queue q on q.topic_id = t.id;
"""


def fill(url: str, groups: int) -> None:
    """Create topics, messages, groups and their cursors."""
    values = {"topics": TOPICS, "queues": QUEUES, "kept": KEPT, "groups": groups}
    with psycopg.connect(url, cursor_factory=psycopg.ClientCursor) as connection:  # several statements in one
        connection.execute(_FILL, values)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("analyze")


class Overview:
    """The first page of a console, requested over one connection."""

    def __init__(self, address: str) -> None:
        self._connection = HTTPConnection(address, timeout=60)
        self.took_ms: list[float] = []
        self.size_bytes = 0

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def ask(self) -> str:
        """Return the document; empty while the console has no data yet."""
        try:
            reply = self._replied()
        except ConnectionError:  # a server closes a connection that was idle for some seconds, on a busy machine
            self._connection.close()
            reply = self._replied()
        body = reply.read()
        return body.decode() if reply.status == 200 else ""

    def _replied(self) -> HTTPResponse:
        self._connection.request("GET", "/notify")
        return self._connection.getresponse()

    def shows(self, groups: int) -> bool:
        """Wait until it shows this number; return True if it does."""
        text = f"<span>{groups:,}</span>"
        until = time.monotonic() + SHOWN_S_MAX
        while text not in self.ask():
            if time.monotonic() >= until:
                return False
            time.sleep(0.2)
        return True

    def measure(self) -> None:
        """Return the latency of one request."""
        began_at = time.perf_counter()
        document = self.ask()
        self.took_ms.append(1000 * (time.perf_counter() - began_at))
        self.size_bytes = len(document.encode())

    def percentile_ms(self, percent: int) -> float:
        """Return a percentile of all measurements."""
        return quantiles(self.took_ms, n=100)[percent - 1]


def main() -> int:
    """Measure and print."""
    parser = parser_of(__doc__, "fewer groups and requests")
    parser.add_argument("--groups", type=int, metavar="N", help="groups in the filled database")
    options = parser.parse_args()
    groups = options.groups or (2_000 if options.quick else 10_000)
    requests = 50 if options.quick else 200
    with ExitStack() as stack:
        server = stack.enter_context(private_server())
        step = stack.enter_context(progress_of("console", 2 + requests))
        found: dict[int, Overview] = {}
        wrong = 0
        for count in (groups, 0):
            url = fresh_database(server, f"with_{count}")
            if count:
                fill(url, count)
            broker = stack.enter_context(broker_process(url))
            overview = Overview(stack.enter_context(console_process(broker.address)))
            stack.callback(overview.close)
            wrong += not overview.shows(count)
            found[count] = overview
            step()
        for _ in range(requests):
            for overview in found.values():
                overview.measure()
            step()
            time.sleep(PAUSE_S)  # so that polls run between and during requests
    for count, overview in found.items():
        print(
            f"{count:7,} groups: p50 {overview.percentile_ms(50):6.1f} ms, p99 {overview.percentile_ms(99):6.1f} ms, "
            f"{overview.size_bytes / 1024:.1f} KiB"
        )
    print(f"target: p99 < {TARGET_MS} ms")
    if wrong:
        print(f"{wrong} of {len(found)} overviews did not show their groups within {SHOWN_S_MAX:g} s")
    if options.json:
        many, none = found[groups], found[0]
        figures = {
            "groups": groups,
            "p50_ms": round(many.percentile_ms(50), 2),
            "p99_ms": round(many.percentile_ms(99), 2),
            "size_bytes": many.size_bytes,
            "reference_p50_ms": round(none.percentile_ms(50), 2),
            "reference_p99_ms": round(none.percentile_ms(99), 2),
            "reference_size_bytes": none.size_bytes,
            "wrong": wrong,
        }
        print(json.dumps(figures))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
