"""Measure the costs of each test: time, CPU time of its process and children, and the lines at which it waits.

A plugin of pytest, for Linux: `pytest -p tests.costs --costs FILE` appends a line of JSON for each test, also with -n.
Afterwards `python -m tests.costs FILE` prints the slowest as a table.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import resource
import sys
import threading
import time
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

_SAMPLE_S = 0.05
_PROCESSES_S_MIN = 0.1
"""Reading the usage of all processes takes milliseconds: shorter tests share one reading."""
_PLACES_MAX = 3
_ROOT = f"{Path(__file__).parents[1]}{os.sep}"
_OURS = tuple(f"{_ROOT}{name}{os.sep}" for name in ("tests", "txmsg", "examples"))
_OF_ANYIO = "_run_tests_and_fixtures"
"""The coroutine that runs coroutine tests."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--costs", type=Path, metavar="FILE", help="append what each test costs to this file")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--costs")
    if path is not None:
        config.pluginmanager.register(_Costs(path.absolute()))


class _Costs:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: list[str] = []
        self._processes_cpu_s = _processes_cpu_s()
        self._read_at = time.monotonic()
        threading.Thread(target=self._sample, args=[threading.get_ident()], daemon=True).start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._seen = []
        began, own_cpu_s = time.monotonic(), time.process_time()
        result = yield
        took_s = time.monotonic() - began
        places = Counter(tuple(self._seen))  # one step, as the other thread goes on adding
        cost = {
            "test": item.nodeid,
            "s": round(took_s, 2),
            "own_cpu_s": round(time.process_time() - own_cpu_s, 2),
            "processes_cpu_s": round(self._of_processes(), 2),
            "at": [(place, round(n * _SAMPLE_S, 2)) for place, n in places.most_common(_PLACES_MAX)],
        }
        with self._path.open("a") as file:
            file.write(json.dumps(cost) + "\n")
        return result

    def _of_processes(self) -> float:
        now = time.monotonic()
        if now - self._read_at < _PROCESSES_S_MIN:
            return 0.0
        before, self._processes_cpu_s, self._read_at = self._processes_cpu_s, _processes_cpu_s(), now
        return max(0.0, self._processes_cpu_s - before)

    def _sample(self, of_thread: int) -> None:
        while True:
            time.sleep(_SAMPLE_S)
            self._seen.extend(_places(of_thread))


def _places(of_thread: int) -> Iterator[str]:
    """Return where a thread is, if it still runs. Keeps no frame, which would keep its variables alive."""
    # A collection within _current_frames that frees a threading.local waits for a lock that this thread holds, and no
    # thread runs any more (Python 3.11).
    gc.disable()
    try:
        frame = sys._current_frames().get(of_thread)
    finally:
        gc.enable()
    if frame is not None:
        yield _place(frame)


def _place(innermost: FrameType) -> str:
    """Return the innermost line of this repository that runs or that the test awaits."""
    frame: FrameType | None = innermost
    while isinstance(frame, FrameType):  # Python 3.11 sometimes returns another object for a frame that was just left
        if frame.f_code.co_name == "run_forever":
            return _awaited(frame.f_locals.get("self")) or "an event loop"
        if _is_ours(frame):
            return _line(frame)
        frame = frame.f_back
    return _line(innermost)


def _awaited(loop: Any) -> str | None:
    try:
        tasks = asyncio.all_tasks(loop)
    except RuntimeError:  # the loop's thread has changed them too often meanwhile
        return None
    found = None
    for task in tasks:
        coroutine: Any = task.get_coro()
        if getattr(coroutine, "__name__", "") == _OF_ANYIO:
            while coroutine is not None:
                frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "ag_frame", None)
                if frame is not None and _is_ours(frame):
                    found = _line(frame)
                coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "ag_await", None)
    return found


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_OURS) and frame.f_code.co_filename != __file__


def _line(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename.removeprefix(_ROOT)}:{frame.f_lineno}"


def _processes_cpu_s() -> float:
    """Return the CPU time of all child processes, including ended ones; without daemons such as PostgreSQL."""
    parent: dict[int, int] = {}
    used: dict[int, int] = {}
    for name in os.listdir("/proc"):
        try:
            words = Path("/proc", name, "stat").read_bytes().rpartition(b")")[2].split() if name.isdigit() else None
        except OSError:  # it has ended
            continue
        if words is not None:
            parent[int(name)] = int(words[1])
            used[int(name)] = sum(map(int, words[11:15]))
    below, found = {os.getpid()}, {os.getpid()}
    while found:
        found = {pid for pid, above in parent.items() if above in found} - below
        below |= found
    ticks = sum(used[pid] for pid in below - {os.getpid()})
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ticks / os.sysconf("SC_CLK_TCK") + ended.ru_utime + ended.ru_stime


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--count", type=int, default=60, help="of tests (60)")
    parser.add_argument("--by", choices=["s", "cpu_s"], default="s", help="time, or CPU time")
    options = parser.parse_args()
    costs = [json.loads(line) for line in options.file.read_text().splitlines()]
    for cost in costs:
        cost["cpu_s"] = cost["own_cpu_s"] + cost["processes_cpu_s"]
    print(f"{len(costs)} tests, {sum(cost['s'] for cost in costs):.0f} s, CPU {sum(c['cpu_s'] for c in costs):.0f} s")
    print("| s | own CPU s | CPU s of processes | test | where it waits or works, s |")
    print("|---|---|---|---|---|")
    for cost in sorted(costs, key=lambda cost: -cost[options.by])[: options.count]:
        places = ", ".join(f"{place} {s:.1f}" for place, s in cost["at"])
        print(
            f"| {cost['s']:.1f} | {cost['own_cpu_s']:.1f} | {cost['processes_cpu_s']:.1f} | {cost['test']} | {places} |"
        )


if __name__ == "__main__":
    main()
