"""An agent under logrotate, kill -9 and a server outage: does each line arrive once in effect, and in order?

A program writes numbered lines of 100 bytes at a rate; logrotate renames its file every few seconds (or, with
--copytruncate, copies and truncates it, while the program waits: what is written meanwhile logrotate itself loses).
The agent is killed and started again, the server of the log stops for a while, then everything may catch up. What is in
the log then is compared by numbers and by ids: each line that was written, once in effect (repeats have the id of what
they repeat), in order. Without --rate, only how fast the agent reads a file that is there is measured. Exit status 1 if
a line is missing or out of order.

    python -m benchmarks.agent [--rate 100000] [--seconds 120] [--away 60] [--kills 5] [--copytruncate]
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.surroundings import parser_of
from txmsg.metaq.interface import LogAccess, LogQueue
from txmsg.metaq.location import open_log
from txmsg.runtime.child import Child

LINE_SIZE_BYTES: Final = 100
_DIGITS: Final = 12
_TAIL = b" " + b"x" * (LINE_SIZE_BYTES - _DIGITS - 2) + b"\n"
TOPIC: Final = "lines"
_QUEUE = LogQueue(TOPIC, 0)
_WITHIN_S: Final = 600.0


@dataclass(slots=True, kw_only=True)
class Found:
    """The arrival of the lines."""

    lines: int
    """Lines written."""
    missing: int
    repeated: int
    """Messages with the id of an earlier one."""
    doubled: int
    """Lines that arrived under two ids."""
    out_of_order: int
    """Lines that arrived after a later one, not counting repeats."""
    lines_per_s: float
    """Rate of the whole run, or of reading alone."""
    agent_cpu_s_per_million: float
    kills: int = 0
    rotations: int = 0
    away_s: float = 0.0

    @property
    def is_right(self) -> bool:
        return not (self.missing or self.doubled or self.out_of_order)


class Writer:
    """A program with a log file, which it reopens when told to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0
        self._lock = threading.Lock()
        self.open()

    def open(self) -> None:
        with self._lock:
            self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def reopen(self) -> None:
        old = self._fd
        self.open()
        os.close(old)

    def write(self, count: int) -> None:
        with self._lock:
            data = b"".join(b"%012d%b" % (number, _TAIL) for number in range(self.count, self.count + count))
            assert os.write(self._fd, data) == len(data)
            self.count += count


class Rotation:
    """The real logrotate, called from here; the program reopens its file, or waits."""

    def __init__(self, directory: Path, writer: Writer, *, copytruncate: bool) -> None:
        self._writer = writer
        self._copytruncate = copytruncate
        self._config, self._state = directory / "logrotate.conf", directory / "logrotate.state"
        way = "copytruncate" if copytruncate else "create 0644"
        self._config.write_text(f"{writer.path} {{\n  rotate 200\n  size 1\n  {way}\n}}\n")
        self._config.chmod(0o644)
        self.count = 0

    def __call__(self) -> None:
        if self._copytruncate:
            with self._writer._lock:
                self._rotate()
        else:
            self._rotate()
            self._writer.reopen()
        self.count += 1

    def _rotate(self) -> None:
        subprocess.run(["logrotate", "--force", "--state", str(self._state), str(self._config)], check=True, timeout=60)


class Process:
    """A txmsg command that can be killed and restarted. It ends with this process."""

    def __init__(self, *words: str, begins: str) -> None:
        self._words = ["txmsg.runtime.child", "txmsg.ops.cli.main", *words]
        self._begins = begins
        self.start()

    def start(self) -> None:
        self._child = Child(
            self._words[2], self._words, log=lambda line: print(line, file=sys.stderr), ready=self._begins
        )
        self._child.wait_ready()

    def kill(self) -> None:
        self._child.stop(60, signal.SIGKILL)

    def end(self) -> None:
        self._child.stop(60)


class World:
    """A directory with a server, an agent, and a program's log file."""

    def __init__(self, directory: Path, settings: Sequence[str] = ()) -> None:
        self.logs = directory / "logs"
        self.logs.mkdir()
        self.address = f"unix:{directory}/metaq.sock"
        self.state = directory / "state"
        config = directory / "agent.toml"
        config.write_text(
            f'log = "{self.address}"\nstate_dir = "{self.state}"\nlog_level = "error"\ncontrol = ""\n'
            f'[source.app]\npaths = ["{self.logs}/app.log"]\ntopic = "{TOPIC}"\nqueues = 1\n' + "\n".join(settings)
        )
        self.server = Process(
            "metaq", "serve", "--data-dir", f"{directory}/log", "--listen", self.address, "--log-level", "error",
            begins="listening",
        )  # fmt: skip
        self.agent_words = ("agent", "run", str(config))

    def start_agent(self) -> Process:
        return Process(*self.agent_words, begins="following")


def end_of(log: LogAccess) -> int:
    """Return the number of messages."""
    return log.ranges([_QUEUE])[_QUEUE].end


def compare(log: LogAccess, count: int) -> tuple[int, int, int, int]:
    """Return missing, repeated, doubled and out-of-order lines among the lines 0 to count - 1."""
    numbers, ids = [np.empty(0, np.int64)], [np.empty((0, 2), np.uint64)]
    offset, end = 0, end_of(log)
    while offset < end:
        [found] = log.fetch({_QUEUE: offset}, size_bytes_max=8 * 1024 * 1024)
        if found.error is not None:
            raise found.error
        for batch in found.batches:
            columns = batch.to_arrow()
            values = columns.column("body")
            text = np.frombuffer(values.buffers()[2], np.uint8, len(values) * (LINE_SIZE_BYTES - 1))
            digits = text.reshape(-1, LINE_SIZE_BYTES - 1)[:, :_DIGITS].astype(np.int64) - ord("0")
            numbers.append(digits @ 10 ** np.arange(_DIGITS - 1, -1, -1, dtype=np.int64))
            of = columns.column("transaction_id")
            ids.append(np.frombuffer(of.buffers()[1], np.uint64, 2 * len(of)).reshape(-1, 2))
            offset = batch.end_offset
    all_numbers, all_ids = np.concatenate(numbers), np.concatenate(ids)
    _, first = np.unique(all_ids, axis=0, return_index=True)
    in_effect = all_numbers[np.sort(first)]
    once, first_of_each = np.unique(in_effect, return_index=True)
    missing = count - len(once[(once >= 0) & (once < count)])
    ordered = in_effect[np.sort(first_of_each)]
    return (
        missing,
        len(all_numbers) - len(in_effect),
        len(in_effect) - len(once),
        int((np.diff(ordered) < 0).sum()),
    )


def caught_up(log: LogAccess, count: int) -> None:
    """Wait until the last line is in the log."""
    deadline = time.monotonic() + _WITHIN_S
    while time.monotonic() < deadline:
        end = end_of(log)
        if end >= count:
            [found] = log.fetch({_QUEUE: end - 1})
            last = [message.body for batch in found.batches for message in batch.messages()][-1]
            if int(last[:_DIGITS]) == count - 1:
                return
        time.sleep(0.1)
    raise RuntimeError(f"after {_WITHIN_S:.0f} s {end_of(log)} messages of {count} lines are in the log")


def read_fast(directory: Path, count: int) -> Found:
    """Return the rate at which an agent reads an existing file."""
    world = World(directory)
    writer = Writer(world.logs / "app.log")
    while writer.count < count:
        writer.write(min(50_000, count - writer.count))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began_at = time.perf_counter()
    agent = world.start_agent()
    with open_log(world.address) as log:
        caught_up(log, count)
        took_s = time.perf_counter() - began_at
        agent.end()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        missing, repeated, doubled, disorder = compare(log, count)
    world.server.end()
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Found(
        lines=count, missing=missing, repeated=repeated, doubled=doubled, out_of_order=disorder,
        lines_per_s=round(count / took_s), agent_cpu_s_per_million=round(cpu_s / count * 1e6, 2),
    )  # fmt: skip


def play(directory: Path, *, rate: int, seconds: float, away_s: float, kills: int, copytruncate: bool) -> Found:
    """Run all phases."""
    world = World(directory)
    writer = Writer(world.logs / "app.log")
    rotate = Rotation(directory, writer, copytruncate=copytruncate)
    agent = world.start_agent()
    began_at = time.monotonic()
    stopped = threading.Event()

    def write() -> None:
        while not stopped.is_set():
            due = int((time.monotonic() - began_at) * rate)
            if due > writer.count:
                writer.write(due - writer.count)
            stopped.wait(0.01)

    def rotate_now_and_then() -> None:
        while not stopped.wait(max(0.8, seconds / 20)):
            rotate()

    threads = [threading.Thread(target=write), threading.Thread(target=rotate_now_and_then)]
    for thread in threads:
        thread.start()
    kill_at = sorted(random.uniform(0.05, 0.95) * seconds for _ in range(kills))
    away_from = seconds / 3
    is_away = was_away = False
    while (passed_s := time.monotonic() - began_at) < seconds:
        if kill_at and passed_s >= kill_at[0]:
            kill_at.pop(0)
            agent.kill()
            agent = world.start_agent()
        if not is_away and not was_away and away_s and passed_s >= away_from:
            world.server.kill()
            is_away = True
        if is_away and passed_s >= away_from + away_s:
            world.server.start()
            is_away, was_away = False, True
        time.sleep(0.05)
    stopped.set()
    for thread in threads:
        thread.join()
    if is_away:
        world.server.start()
    with open_log(world.address) as log:
        caught_up(log, writer.count)
        took_s = time.monotonic() - began_at
        agent.end()
        cpu = resource.getrusage(resource.RUSAGE_CHILDREN)
        missing, repeated, doubled, disorder = compare(log, writer.count)
    world.server.end()
    return Found(
        lines=writer.count, missing=missing, repeated=repeated, doubled=doubled, out_of_order=disorder,
        lines_per_s=round(writer.count / took_s),
        agent_cpu_s_per_million=round((cpu.ru_utime + cpu.ru_stime) / writer.count * 1e6, 2),
        kills=kills, rotations=rotate.count, away_s=away_s,
    )  # fmt: skip


def main() -> int:
    """Measure, print, and compare."""
    parser = parser_of(__doc__, "a million lines, and a story of 20 s")
    parser.add_argument("--rate", type=int, default=100_000, metavar="LINES", help="lines per second (100,000)")
    parser.add_argument("--seconds", type=float, default=120.0, help="how long lines are written (120)")
    parser.add_argument("--away", type=float, default=60.0, metavar="SECONDS", help="how long the server is away (60)")
    parser.add_argument("--kills", type=int, default=5, help="how often the agent is killed (5)")
    parser.add_argument("--copytruncate", action="store_true", help="logrotate copies and truncates")
    parser.add_argument("--lines", type=int, default=2_000_000, help="of the file that is there (2,000,000)")
    options = parser.parse_args()
    seconds, away_s, kills = (20.0, 5.0, 3) if options.quick else (options.seconds, options.away, options.kills)
    lines = 1_000_000 if options.quick else options.lines
    with tempfile.TemporaryDirectory(prefix="txmsg-bench-") as place:
        fast = read_fast(Path(place), lines)
    print(
        f"a file that is there: {fast.lines_per_s:,}/s, {fast.agent_cpu_s_per_million} s of the agent's CPU per "
        f"million; {fast.missing} missing, {fast.repeated} repeated, {fast.out_of_order} out of order"
    )
    figures: dict[str, object] = {"file": asdict(fast)}
    is_right = fast.is_right
    if shutil.which("logrotate") is None:
        print("logrotate is not installed: `apt-get install logrotate` (Debian)")
    else:
        with tempfile.TemporaryDirectory(prefix="txmsg-bench-") as place:
            story = play(
                Path(place), rate=options.rate, seconds=seconds, away_s=away_s, kills=kills,
                copytruncate=options.copytruncate,
            )  # fmt: skip
        figures["story"] = asdict(story)
        is_right = is_right and story.is_right
        print(
            f"{story.lines:,} lines with {story.rotations} rotations, {story.kills} kills and {story.away_s:.0f} s "
            f"without a server: {story.lines_per_s:,}/s; {story.missing} missing, {story.repeated} repeated, "
            f"{story.doubled} doubled, {story.out_of_order} out of order"
        )
    if options.json:
        print(json.dumps(figures))
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
