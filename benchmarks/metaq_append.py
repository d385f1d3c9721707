"""Append rate of MetaQ: small and large messages, batches and single ones, compressed, synchronous, to many queues.

Targets: 100 bytes in batches of 100, flushed by time: 2,000,000 messages/s; 10,000 queues 0.8 of one. Encoding is part
of it. A call appends one batch to a timed topic, 100 batches to a synchronous one, and returns when those are on disk.

The reference, by turns: os.write of the same bytes in the same calls, and fdatasync as often. For many queues it is one
queue. Beside it Redis Streams, XADD in pipelines as large as a call, with appendfsync `everysec` or `always`.
The messages that each log ends with must be those appended, or the exit status is 1.

    python -m benchmarks.metaq_append [--quick] [--json] [--only NAME ...]
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from benchmarks.metaq_work import Case, appends, columns_of, fresh_log, redis_streams, targets, xadd
from benchmarks.surroundings import parser_of, progress_of
from benchmarks.turns import Compared, by_turns
from txmsg.metaq.format.frame import Compression
from txmsg.metaq.store.commit_log import CommitLogReader
from txmsg.metaq.store.log import Log, LogConfig
from txmsg.metaq.store.topics import Flush

FLUSH_S = LogConfig().flush_s
CASES = [
    Case(name="100 B x 100"),
    Case(name="100 B x 100, sync", flush=Flush.SYNC),
    Case(name="1 KiB x 100", size_bytes=1024),
    Case(name="1 KiB x 100, sync", size_bytes=1024, flush=Flush.SYNC),
    Case(name="100 B x 1", count=1),
    Case(name="100 B x 1, sync", count=1, flush=Flush.SYNC),
    Case(name="100 B x 100, lz4", compression=Compression.LZ4),
    Case(name="100 B x 100, zstd", compression=Compression.ZSTD),
]
MANY = [
    Case(name="100 queues", queues=100),
    Case(name="10,000 queues", queues=10_000),
    Case(name="10,000 queues, sync", queues=10_000, flush=Flush.SYNC),
]
QUICK_MANY = 2  # making ten thousand queues, and removing them, takes longer than the measurement


class Mismatch(Exception):
    """The log does not contain the appended messages."""


def rate_of(calls: Iterable[Callable[[], None]], messages_per_call: int, seconds: float) -> tuple[int, float]:
    """Call until the time is up; return the number of calls, and messages per second."""
    done = 0
    began_at = time.perf_counter()
    until = began_at + seconds
    for call in calls:
        call()
        done += 1
        if time.perf_counter() >= until:
            break
    return done, done * messages_per_call / (time.perf_counter() - began_at)


class Appending:
    """A log that is appended to turn by turn, and counts its expected contents."""

    def __init__(self, log: Log, case: Case, seconds: float) -> None:
        self.log = log
        self._case = case
        self._seconds = seconds
        self._calls = appends(log, case)
        self._messages = case.queues * case.count

    def __call__(self) -> dict[str, float]:
        per_call = self._case.per_call * self._case.count
        done, rate = rate_of(self._calls, per_call, self._seconds)
        self._messages += done * per_call
        self.log.flush()
        return {"append": rate}

    def check(self) -> None:
        """Raise Mismatch if the log lacks messages."""
        held = sum(self.log.reader.queue(*queue).end_offset() for queue in targets(self._case))
        if held != self._messages:
            raise Mismatch(f"{self._case.name}: {held} messages are in the log, {self._messages} were appended")


def frame_of(log: Log) -> bytes:
    """Return the bytes of the first frame."""
    reader = CommitLogReader(log.root / "commitlog")
    size = int.from_bytes(reader.read(8, 4), "little")
    return bytes(reader.read(0, size))


def raw(path: Path, frame: bytes, case: Case, seconds: float) -> dict[str, float]:
    """Write the same bytes in the same calls, synced as often."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    data = frame * case.per_call
    synced_at = time.perf_counter()

    def call() -> None:
        nonlocal synced_at
        os.write(fd, data)
        if case.flush is Flush.SYNC:
            os.fdatasync(fd)
        elif time.perf_counter() - synced_at >= FLUSH_S:
            os.fdatasync(fd)
            synced_at = time.perf_counter()

    try:
        rate = rate_of(iter(lambda: call, None), case.per_call * case.count, seconds)[1]
        os.fdatasync(fd)
    finally:
        os.close(fd)
        path.unlink()
    return {"append": rate}


def compare_with_raw(case: Case, seconds: float, turns: int) -> Compared:
    """Compare a case with raw writing."""
    compared: dict[str, Compared] = {}
    with fresh_log(case) as log, tempfile.TemporaryDirectory(prefix="txmsg-bench-") as place:
        appending = Appending(log, case, seconds)
        frame = frame_of(log)
        for _ in range(turns):
            by_turns(appending, lambda: raw(Path(place) / "raw", frame, case, seconds), compared)
        appending.check()
    return compared["append"]


def compare_with_one_queue(case: Case, seconds: float, turns: int) -> Compared:
    """Compare a case of many queues with the same for one."""
    compared: dict[str, Compared] = {}
    one = Case(name="one queue", flush=case.flush)
    with fresh_log(case) as log, fresh_log(one) as log_of_one:
        many, single = Appending(log, case, seconds), Appending(log_of_one, one, seconds)
        for _ in range(turns):
            by_turns(many, single, compared)
        many.check()
        single.check()
    return compared["append"]


def redis_rate(case: Case, appendfsync: str, seconds: float) -> float | None:
    """Return messages per second into a Redis stream, in pipelines of the case's calls; None without redis-server."""
    bodies = columns_of(case).body
    with redis_streams("--appendfsync", appendfsync) as client:
        if client is None:
            return None

        def call() -> None:
            xadd(client, bodies, case.per_call)

        return rate_of(iter(lambda: call, None), case.per_call * case.count, seconds)[1]


def main() -> int:
    """Measure, print, and compare with the contents of the logs."""
    parser = parser_of(__doc__, "few short turns")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="cases whose names begin so, and no Redis")
    options = parser.parse_args()
    turns, seconds = (3, 0.3) if options.quick else (7, 1.0)

    def is_wanted(case: Case) -> bool:
        return not options.only or case.name.startswith(tuple(options.only))

    many = MANY[:QUICK_MANY] if options.quick else MANY
    found: dict[str, Compared] = {}
    wrong: list[str] = []
    with progress_of("append", len(CASES) + len(many)) as step:
        kinds = ((CASES, compare_with_raw, "os.write"), (many, compare_with_one_queue, "one queue"))
        for cases, compare, reference in kinds:
            for case in filter(is_wanted, cases):
                try:
                    each = found[case.name] = compare(case, seconds, turns)
                except Mismatch as exc:
                    wrong.append(str(exc))
                else:
                    print(
                        f"{case.name:22}{each.rate:12,.0f}/s   {reference:9} {each.reference:14,.0f}/s   "
                        f"ratio {each.ratio:.3f}",
                        flush=True,
                    )
                step()
    peers: dict[str, float] = {}
    for case, appendfsync in () if options.only else zip(CASES, ("everysec", "always"), strict=False):
        rate = redis_rate(case, appendfsync, seconds * turns)
        if rate is None:
            break
        peers[case.name] = round(rate, 1)
        print(f"{case.name:22}{rate:12,.0f}/s   Redis Streams, appendfsync {appendfsync}")
    if options.json:
        figures = {key: value for name, each in found.items() for key, value in each.figures(name).items()}
        print(json.dumps({**figures, "redis_per_s": peers}))
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
