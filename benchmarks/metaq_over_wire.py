"""A remote log beside one in a directory: appends, reads into Arrow, and latency of waiting fetches.

The server is a process of its own, the client one thread or several. The reference, by turns, is the same code on a
directory: `open_log` makes both. Each level of acknowledgements is measured beside "disk", at a server with a copy.
Messages have 100 bytes, in batches of 100. A synchronous append is on disk when it returns. The messages that each log
ends with must be those appended, and each is read once, or the exit status is 1.

    python -m benchmarks.metaq_over_wire [--quick] [--json]
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

from benchmarks.surroundings import metaq_process, parser_of, progress_of
from benchmarks.turns import Compared, by_turns
from txmsg.metaq.acks import Acks
from txmsg.metaq.format.batch import to_arrow
from txmsg.metaq.format.frame import FrameColumns, encode
from txmsg.metaq.interface import LogAccess, LogQueue
from txmsg.metaq.location import open_log
from txmsg.metaq.store.log import Append
from txmsg.metaq.store.topics import Flush, TopicSettings

COUNT = 100
FETCH_SIZE_BYTES = 1024 * 1024
WAIT_S = 60.0
PAYLOAD = encode(FrameColumns([b"b" * 100] * COUNT, [1_700_000_000_000_000]))


class Mismatch(Exception):
    """The log does not contain the appended messages, or not all were read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Appends of one kind. batches: in one call; callers: threads, each with its own calls."""

    name: str
    flush: Flush
    batches: int = 1
    callers: int = 1

    @property
    def queue(self) -> LogQueue:
        return LogQueue(f"{self.flush}-{self.batches}-{self.callers}", 0)


CASES = [
    Case(name="timed, 1 batch a call", flush=Flush.TIMED),
    Case(name="timed, 100 batches a call", flush=Flush.TIMED, batches=100),
    Case(name="timed, 16 callers of 1 batch", flush=Flush.TIMED, callers=16),
    Case(name="sync, 1 caller of 1 batch", flush=Flush.SYNC),
    Case(name="sync, 16 callers of 1 batch", flush=Flush.SYNC, callers=16),
]
READ = CASES[1]


class Appending:
    """A log that is appended to turn by turn, and counts its expected contents."""

    def __init__(self, log: LogAccess, case: Case, seconds: float) -> None:
        self._log = log
        self._case = case
        self._seconds = seconds
        self._messages = 0
        log.set_topic(case.queue.topic, TopicSettings(flush=case.flush))

    def __call__(self) -> dict[str, float]:
        case = self._case
        began_at = time.perf_counter()
        until = began_at + self._seconds
        with ThreadPoolExecutor(case.callers) as pool:
            calls = sum(pool.map(self._append_until, [until] * case.callers))
        messages = calls * case.batches * COUNT
        self._messages += messages
        return {f"append, {case.name}": messages / (time.perf_counter() - began_at)}

    def _append_until(self, until: float) -> int:
        appends = [Append(*self._case.queue, PAYLOAD)] * self._case.batches
        calls = 0
        while time.perf_counter() < until:
            self._log.append(appends)
            calls += 1
        return calls

    def check(self) -> None:
        """Raise Mismatch if the log lacks messages."""
        held = self._log.ranges([self._case.queue])[self._case.queue].end
        if held != self._messages:
            raise Mismatch(f"{self._case.name}: {held} messages are in the log, {self._messages} were appended")


def read(log: LogAccess) -> dict[str, float]:
    """Read a queue from begin to end; return messages per second."""
    queue = READ.queue
    end = log.ranges([queue])[queue].end
    offset = count = 0
    began_at = time.perf_counter()
    while offset < end:
        [found] = log.fetch({queue: offset}, size_bytes_max=FETCH_SIZE_BYTES)
        if found.error is not None:
            raise Mismatch(f"offset {offset} cannot be read: {found.error}")
        count += to_arrow(found.batches).num_rows
        offset = found.batches[-1].end_offset
    if count != end:
        raise Mismatch(f"{count} messages were read, {end} are there")
    return {"read into Arrow": count / (time.perf_counter() - began_at)}


def waits_ms(writer: LogAccess, reader: LogAccess, times: int) -> list[float]:
    """Return ms from before a synchronous append of one batch until a waiting reader has it."""
    queue = LogQueue("waited", 0)
    found: list[float] = []
    with ThreadPoolExecutor(1) as pool:
        for number in range(times):
            waiting = pool.submit(reader.fetch, {queue: number * COUNT}, wait_s=WAIT_S)
            time.sleep(0.02)  # it waits by then
            began_at = time.perf_counter()
            writer.append([Append(*queue, PAYLOAD)])
            if not waiting.result():
                raise Mismatch("a wait ended without what it waited for")
            found.append(1000 * (time.perf_counter() - began_at))
    return found


class Asking:
    """Appends of one batch to a synchronous topic, by so many threads that do nothing else."""

    def __init__(self, log: LogAccess, acks: Acks, seconds: float, callers: int = 4) -> None:
        self._log = log
        self._acks = acks
        self._seconds = seconds
        self._callers = callers
        self._messages = 0

    def __call__(self) -> dict[str, float]:
        began_at = time.perf_counter()
        with ThreadPoolExecutor(self._callers) as pool:
            calls = sum(pool.map(self._append_until, [began_at + self._seconds] * self._callers))
        self._append(Acks.DISK)  # which is after all unawaited appends
        messages = (calls + 1) * COUNT
        self._messages += messages
        return {"append": messages / (time.perf_counter() - began_at)}

    def _append_until(self, until: float) -> int:
        calls = 0
        while time.perf_counter() < until:
            self._append(self._acks)
            calls += 1
        return calls

    def _append(self, acks: Acks) -> None:
        self._log.append([Append(f"acks-{self._acks}", 0, PAYLOAD)], acks)

    def check(self) -> None:
        """Raise Mismatch if the log lacks messages."""
        queue = LogQueue(f"acks-{self._acks}", 0)
        held = self._log.ranges([queue])[queue].end
        if held != self._messages:
            raise Mismatch(f"acks {self._acks}: {held} messages are in the log, {self._messages} were appended")


def levels(seconds: float, turns: int) -> dict[str, Compared]:
    """Measure each acks level beside `disk`, at a server that requires a copy."""
    found: dict[str, Compared] = {}
    with tempfile.TemporaryDirectory(prefix="txmsg-bench-") as place:
        with metaq_process(Path(place) / "leader", "--copies-required", "1") as (address, _):
            with metaq_process(Path(place) / "copy", leader=address), open_log(address) as log:
                disk = Asking(log, Acks.DISK, seconds)
                for acks in (Acks.NONE, Acks.MEMORY, Acks.COPIES):
                    asking, compared = Asking(log, acks, seconds), dict[str, Compared]()
                    for _ in range(turns):
                        by_turns(asking, disk, compared)
                    asking.check()
                    found[f"append, acks {acks}, 4 callers of 1 batch"] = compared["append"]
                disk.check()
    return found


@contextmanager
def both() -> Iterator[tuple[LogAccess, LogAccess, LogAccess]]:
    """Yield a remote log, the same for a second client, and another one in a directory."""
    with tempfile.TemporaryDirectory(prefix="txmsg-bench-") as place:
        with metaq_process(Path(place) / "served") as (address, _):
            with open_log(address) as remote, open_log(address) as second:
                with open_log(Path(place) / "local", append=True) as local:
                    yield remote, second, local


def main() -> int:
    """Measure, print, and compare with the contents of the logs."""
    options = parser_of(__doc__, "few short turns").parse_args()
    turns, seconds, times = (3, 0.3, 50) if options.quick else (7, 1.0, 300)
    compared: dict[str, Compared] = {}
    try:
        with both() as (remote, second, local), progress_of("over the wire", len(CASES) + 3) as step:
            for case in CASES:
                here, there = Appending(local, case, seconds), Appending(remote, case, seconds)
                for _ in range(turns):
                    by_turns(there, here, compared)
                here.check()
                there.check()
                step()
            for _ in range(turns):
                by_turns(lambda: read(remote), lambda: read(local), compared)
            step()
            waits = waits_ms(remote, second, times)
            step()
            asked = levels(seconds, turns)
            step()
    except Mismatch as exc:
        print(exc, file=sys.stderr)
        return 1
    for name, each in compared.items():
        print(f"{name:40}{each.rate:12,.0f}/s   directory {each.reference:12,.0f}/s   ratio {each.ratio:.3f}")
    for name, each in asked.items():
        print(f"{name:40}{each.rate:12,.0f}/s   acks disk {each.reference:12,.0f}/s   ratio {each.ratio:.3f}")
    p50, p99 = median(waits), quantiles(waits, n=100)[98]
    print(f"{'from a synchronous append to who waits':40}{p50:10.1f} ms p50 {p99:10.1f} ms p99")
    if options.json:
        figures = {key: value for name, each in (compared | asked).items() for key, value in each.figures(name).items()}
        print(json.dumps({**figures, "wait_p50_ms": round(p50, 2), "wait_p99_ms": round(p99, 2)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
