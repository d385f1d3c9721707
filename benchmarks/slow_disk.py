"""Transactional sends on disks whose syncs take longer, as in clouds, beside pgbench on the same disk.

Each sync of PostgreSQL takes 0, 1 and 3 ms more (tests/disk.c is preloaded into it, which needs a C compiler). For each
delay, 1, 64, 256 and 1,024 asyncio callers send one transaction after the other, and pgbench calls the same function in
batches of 200. The rows found in the tables afterwards must equal the number claimed, or the exit status is 1.

    python -m benchmarks.slow_disk [--quick] [--json] [--delays-ms 0,1,3] [--callers 1,64,256,1024]
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from benchmarks.load import run
from benchmarks.surroundings import broker_process, fresh_database, parser_of, progress_of
from benchmarks.transactional_send import PGBENCH_BATCH, Figure, count_messages, run_async, run_pgbench
from tests.chaos.keeper import DisturbedPostgres
from tests.disk import Disk
from tests.preloaded import HOW_TO_INSTALL_CC, compiler

DELAYS_MS = "0,1,3"
CALLERS = "1,64,256,1024"


@dataclass(frozen=True, slots=True, kw_only=True)
class OnDisk:
    """The rates of so many callers."""

    delay_ms: float
    figure: Figure
    per_sync: float
    """Transactions for each sync of PostgreSQL: of all kinds, also by its background processes."""
    idle: float
    """Unused share of the machine's CPU time."""


@contextmanager
def slow_database() -> Iterator[tuple[str, Disk]]:
    """Yield a fresh Notify database, and its disk."""
    with tempfile.TemporaryDirectory(prefix="txmsg-bench-") as name:
        directory = Path(name)
        directory.chmod(0o755)  # PostgreSQL may run as another user
        disk = Disk(directory)
        disk.prepare()
        with DisturbedPostgres(directory / "postgres") as server:
            yield fresh_database(server, "bench"), disk


def measure(address: str, disk: Disk, delay_ms: float, callers: int, seconds: float) -> OnDisk:
    """Send by `callers` coroutines for so long."""
    syncs = disk.syncs()
    psutil.cpu_times_percent()  # it tells what was since the call before
    found = run(run_async(address, callers, seconds))
    idle = psutil.cpu_times_percent().idle / 100
    per_sync = found.sends / max(1, disk.syncs() - syncs)
    return OnDisk(delay_ms=delay_ms, figure=found, per_sync=round(per_sync, 1), idle=round(idle, 2))


def main() -> int:
    """Measure, print, and compare with the rows in the tables."""
    parser = parser_of(__doc__, "two seconds per figure")
    parser.add_argument("--seconds", type=float, help="per figure (default: 8; quick: 2)")
    parser.add_argument("--delays-ms", default=DELAYS_MS, help=f"what each sync takes more (default: {DELAYS_MS})")
    parser.add_argument("--callers", default=CALLERS, help=f"how many send at once (default: {CALLERS})")
    options = parser.parse_args()
    if compiler() is None:
        parser.error(HOW_TO_INSTALL_CC)
    seconds = options.seconds or (2.0 if options.quick else 8.0)
    delays_ms = [float(each) for each in options.delays_ms.split(",")]
    crowds = [int(each) for each in options.callers.split(",")]
    reached: list[OnDisk] = []
    pgbench_per_s: dict[float, float] = {}
    claimed = 0
    with (
        slow_database() as (url, disk),
        broker_process(url) as broker,
        progress_of("slow disk", len(delays_ms) * (1 + len(crowds))) as step,
    ):
        run(run_async(broker.address, 64, 1.0))  # warms caches and plans; counted by its rows only
        base = count_messages(url)
        for delay_ms in delays_ms:
            disk.set_delay(delay_ms / 1000)
            for callers in crowds:
                reached.append(measure(broker.address, disk, delay_ms, callers, seconds))
                step()
            pgbench_per_s[delay_ms], done = run_pgbench(url, seconds)
            claimed += done
            step()
        disk.set_delay(0)
        rows = count_messages(url) - base
    claimed += sum(each.figure.sends for each in reached)
    for each in reached:
        found, ratio = each.figure, each.figure.rate_per_s / pgbench_per_s[each.delay_ms]
        print(
            f"+{each.delay_ms:g} ms, {found.callers:5d} callers: {found.rate_per_s:10,.0f}/s   "
            f"p50 {found.p50_ms:8.2f} ms   p99 {found.p99_ms:8.2f} ms   {ratio:.2f} of pgbench   "
            f"{each.per_sync:6.1f} a sync   {each.idle:4.0%} idle"
        )
    for delay_ms, rate_per_s in pgbench_per_s.items():
        print(f"+{delay_ms:g} ms, pgbench, batches of {PGBENCH_BATCH}: {rate_per_s:,.0f}/s")
    print(f"rows in the tables: {rows:,}, claimed: {claimed:,}")
    if options.json:
        result = {
            "async": [asdict(each) for each in reached],
            "pgbench_per_s": {f"{delay_ms:g}": round(rate_per_s, 1) for delay_ms, rate_per_s in pgbench_per_s.items()},
            "rows": rows,
            "claimed": claimed,
        }
        print(json.dumps(result))
    return 0 if rows == claimed else 1


if __name__ == "__main__":
    sys.exit(main())
