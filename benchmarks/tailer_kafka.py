"""The mirror into Kafka: catch-up rate of a tailer, by turns with one into a log in a directory.

Target: >= 100,000 messages/s of 100 bytes, each once for readers of what is committed. All on this machine: PostgreSQL,
Kafka of one node, and the tailer.

Catching up: a tailer that was away, and reads its slot. A new mirror: a tailer that reads the table. In the end every
log is compared with its table; the exit status is 1 unless they are equal. Kafka is that of the tests (Java and Maven),
or the one that --kafka names.

    python -m benchmarks.tailer_kafka [--quick] [--json] [--rows N] [--turns N] [--kafka HOST:PORT]
"""

from __future__ import annotations

import json
import sys
import tempfile
import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from statistics import median

from benchmarks.kafka import kafka
from benchmarks.load import run, send
from benchmarks.surroundings import (
    broker_process,
    fresh_database,
    parser_of,
    private_server,
    progress_of,
    tailer_process,
)
from benchmarks.tailer import PRIMED, QUEUES, TOPIC, await_mirrored, caught_up, differing, rebuilt_per_s
from benchmarks.turns import Compared, by_turns
from txmsg.binlog.database import connect
from txmsg.binlog.status import drop
from txmsg.broker.embedded import EmbeddedPostgres

KINDS = ("kafka", "files")
LogOf = Callable[[str, str], Path | str]
"""Returns the location of a mirror's log, by one of KINDS and its name."""


def compare(
    server: EmbeddedPostgres, log_of: LogOf, rows: int, turns: int, step: Callable[[], None]
) -> tuple[dict[str, Compared], dict[str, float], int]:
    """Return rates by turns, core us of a tailer per message, and the number of differing messages."""
    url = fresh_database(server, "catch_up")
    with broker_process(url, "--topic-queues", str(QUEUES)) as broker:
        run(send(broker.address, TOPIC, PRIMED))
        for kind in KINDS:
            for turn in range(turns):
                log = log_of(kind, f"away{turn}")
                with tailer_process(url, log, "--name", f"{kind}_away{turn}"):
                    await_mirrored(log, PRIMED)
        run(send(broker.address, TOPIC, rows))
    count = PRIMED + rows
    found: dict[str, Compared] = {}
    used_us: dict[str, list[float]] = {kind: [] for kind in KINDS}
    wrong = 0

    def catch_up(kind: str) -> dict[str, float]:
        name = f"{kind}_away{turn}"
        rate_per_s, us = caught_up(url, name, log_of(kind, f"away{turn}"), count)
        drop_mirror(url, name)
        used_us[kind].append(us)
        return {"catch_up": rate_per_s}

    def begin(kind: str) -> dict[str, float]:
        name = f"{kind}_new{turn}"
        rate_per_s = rebuilt_per_s(url, log_of(kind, f"new{turn}"), count, name)
        drop_mirror(url, name)
        return {"new": rate_per_s}

    for turn in range(turns):
        for work in (catch_up, begin):
            by_turns(lambda: work("kafka"), lambda: work("files"), found)  # noqa: B023 - called at once
        wrong += sum(differing(url, log_of(kind, f"{which}{turn}")) for kind in KINDS for which in ("away", "new"))
        step()
    return found, {kind: median(us) for kind, us in used_us.items()}, wrong


def drop_mirror(url: str, name: str) -> None:
    """Drop a mirror: a server has slots for few of them."""
    with closing(connect(url)) as session:
        drop(session, name)


def main() -> int:
    """Measure, print, and compare every log with its table."""
    parser = parser_of(__doc__, "200,000 rows, one turn")
    parser.add_argument("--rows", type=int, metavar="N", help="messages to catch up with")
    parser.add_argument("--turns", type=int, metavar="N", help="turns of each")
    parser.add_argument("--kafka", metavar="HOST:PORT", help="a Kafka that runs")
    options = parser.parse_args()
    rows = options.rows or (200_000 if options.quick else 1_000_000)
    turns = options.turns or (1 if options.quick else 3)
    with (
        tempfile.TemporaryDirectory(prefix="txmsg-bench-") as directory,
        kafka(options.kafka) as servers,
        private_server() as server,
        progress_of("tailer_kafka", turns) as step,
    ):
        in_kafka = f"kafka://{servers}/bench-{uuid.uuid4().hex}-"

        def log_of(kind: str, name: str) -> Path | str:
            return f"{in_kafka}{name}-" if kind == "kafka" else Path(directory) / name

        found, used_us, wrong = compare(server, log_of, rows, turns, step)
    for name, what in (("catch_up", f"catching up with {rows:,} messages"), ("new", "a new mirror, from the table")):
        each = found[name]
        print(f"{what:40}{each.rate:10,.0f}/s   into files {each.reference:10,.0f}/s   ratio {each.ratio:.2f}")
    print(f"a message caught up with takes {used_us['kafka']:.1f} us of a core   into files {used_us['files']:.1f} us")
    print(f"{wrong} messages of the logs differ from their tables")
    if options.json:
        figures = {key: value for name, each in found.items() for key, value in each.figures(name).items()}
        print(json.dumps(figures | {f"{kind}_cpu_us": round(us, 2) for kind, us in used_us.items()} | {"wrong": wrong}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
