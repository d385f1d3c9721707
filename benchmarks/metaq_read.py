"""Read rate of MetaQ, into Arrow and into messages: small and large ones, compressed, from one queue and many.

Target: 100 bytes in batches of 100 into Arrow: 3,000,000 messages/s. Each fetch asks for 1 MiB, and becomes one Arrow
table; everything is checked against its checksum. The reference, by turns: os.read of the same files by 1 MiB.
Files are in the page cache for both. Beside it Redis Streams, XRANGE in pieces of 10,000. What is read must be what was
appended, or the exit status is 1.

    python -m benchmarks.metaq_read [--quick] [--json] [--only NAME ...]
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

from benchmarks.metaq_work import Case, appends, columns_of, fresh_log, redis_streams, targets, xadd
from benchmarks.surroundings import parser_of, progress_of
from benchmarks.turns import Compared, by_turns
from txmsg.metaq.format.batch import LogBatch, to_arrow
from txmsg.metaq.format.frame import Compression
from txmsg.metaq.store.log import Log
from txmsg.metaq.store.reader import LogReader

FETCH_SIZE_BYTES = 1024 * 1024
XRANGE_COUNT = 10_000
CASES = [
    Case(name="100 B x 100"),
    Case(name="1 KiB x 100", size_bytes=1024),
    Case(name="100 B x 1", count=1),
    Case(name="100 B x 100, lz4", compression=Compression.LZ4),
    Case(name="100 B x 100, zstd", compression=Compression.ZSTD),
    Case(name="100 B x 100, 100 queues", queues=100),
    Case(name="100 B x 100, 10,000 queues", queues=10_000),
]
Take = Callable[[Sequence[LogBatch]], int]
"""Processes the batches of a fetch; returns the number of messages."""


class Mismatch(Exception):
    """The messages read differ from those appended."""


def into_arrow(batches: Sequence[LogBatch]) -> int:
    return int(to_arrow(batches).num_rows)


def into_messages(batches: Sequence[LogBatch]) -> int:
    return sum(1 for batch in batches for _ in batch.messages())


def read(log: Log, case: Case, take: Take) -> float:
    """Read every queue from begin to end with a new reader; return messages per second."""
    reader = LogReader(log.root)
    count = 0
    began_at = time.perf_counter()
    for queue in targets(case):
        each = reader.queue(*queue)
        offset = 0
        while batches := each.fetch(offset, size_bytes_max=FETCH_SIZE_BYTES):
            count += take(batches)
            offset = batches[-1].end_offset
    rate = count / (time.perf_counter() - began_at)
    appended = sum(log.reader.queue(*queue).end_offset() for queue in targets(case))
    if count != appended:
        raise Mismatch(f"{case.name}: {count} messages were read, {appended} were appended")
    return rate


def read_raw(paths: list[Path], messages: int) -> float:
    """Read the same files and ignore the contents."""
    began_at = time.perf_counter()
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        while os.read(fd, FETCH_SIZE_BYTES):
            pass
        os.close(fd)
    return messages / (time.perf_counter() - began_at)


def compare(case: Case, messages: int, turns: int) -> dict[str, Compared]:
    """Compare a case with raw reading: into Arrow, and in fewer turns into messages."""
    into: dict[str, Compared] = {}
    with fresh_log(case) as log:
        for _, call in zip(range(messages // case.count), appends(log, case), strict=False):
            call()
        log.flush()
        paths = sorted((log.root / "commitlog").iterdir())
        held = sum(log.reader.queue(*queue).end_offset() for queue in targets(case))
        takes: list[tuple[str, Take, int]] = [("Arrow", into_arrow, turns), ("messages", into_messages, 1)]
        for name, take, times in takes:
            what = f"{case.name}, into {name}"
            for _ in range(times):
                by_turns(
                    lambda take=take, what=what: {what: read(log, case, take)},  # type: ignore[misc]
                    lambda what=what: {what: read_raw(paths, held)},  # type: ignore[misc]
                    into,
                )
    return into


def show(found: dict[str, Compared], all_found: dict[str, Compared]) -> None:
    """Print figures as soon as they are available."""
    for name, each in found.items():
        print(f"{name:42}{each.rate:12,.0f}/s   os.read {each.reference:14,.0f}/s   ratio {each.ratio:.3f}", flush=True)
    all_found.update(found)


def redis_rate(messages: int) -> float | None:
    """Return messages of 100 bytes per second; None without redis-server."""
    case = CASES[0]
    with redis_streams("--appendfsync", "no") as client:
        if client is None:
            return None
        xadd(client, columns_of(case).body, messages // case.count)
        count, after = 0, "-"
        began_at = time.perf_counter()
        while found := client.xrange("stream", min=after, count=XRANGE_COUNT):
            count += len(found)
            after = "(" + cast(bytes, found[-1][0]).decode()
        if count != messages:
            raise Mismatch(f"Redis: {count} messages were read, {messages} were appended")
        return count / (time.perf_counter() - began_at)


def main() -> int:
    """Measure, print, and compare with the appended messages."""
    parser = parser_of(__doc__, "few messages")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="cases whose names begin so, and no Redis")
    options = parser.parse_args()
    turns, messages = (3, 200_000) if options.quick else (7, 2_000_000)
    compared: dict[str, Compared] = {}
    peer: float | None = None
    try:
        with progress_of("read", len(CASES)) as step:
            for case in CASES:
                if not options.only or case.name.startswith(tuple(options.only)):
                    show(compare(case, messages // 10 if case.count == 1 else messages, turns), compared)
                step()
        if not options.only:
            peer = redis_rate(messages // 10)
    except Mismatch as exc:
        print(exc, file=sys.stderr)
        return 1
    if peer is not None:
        print(f"{CASES[0].name + ', into a list':42}{peer:12,.0f}/s   Redis Streams")
    if options.json:
        figures = {key: value for name, each in compared.items() for key, value in each.figures(name).items()}
        print(json.dumps({**figures, "redis_per_s": peer}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
