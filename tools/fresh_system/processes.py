"""Runs commands with a time limit, and deletes directories with mounts in them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

LINES_KEPT = 5000
TIMED_OUT = 124
"""The exit code of a command that was killed at its time limit, as `timeout` has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The end of a command. lines: the last of its output, both streams."""

    code: int
    lines: tuple[str, ...]
    seconds: float


def say(text: str) -> None:
    """Print progress."""
    print(text, file=sys.stderr, flush=True)


def run(command: Sequence[str], *, timeout_s: float, environment: Mapping[str, str] | None = None) -> Outcome:
    """Run a command in its own session, so that Ctrl-C reaches this process alone, which then ends the command."""
    lines: deque[str] = deque(maxlen=LINES_KEPT)
    begin = time.monotonic()
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=environment,
        start_new_session=True,
    )
    assert process.stdout is not None
    output = process.stdout
    reader = threading.Thread(target=lambda: lines.extend(line.rstrip() for line in output), daemon=True)
    reader.start()
    try:
        code = process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        end(process)
        code = TIMED_OUT
    except BaseException:
        end(process)
        raise
    finally:
        reader.join()
        output.close()
    if code == TIMED_OUT:
        lines.append(f"killed after {timeout_s:.0f} s")
    return Outcome(code=code, lines=tuple(lines), seconds=round(time.monotonic() - begin, 1))


def end(process: subprocess.Popen[str]) -> None:
    """Kill a process and its child.

    If it is `unshare --fork`, the child is the first process of a namespace: `unshare` ends when all of that namespace
    have ended.
    """
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="ascii").split()
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(child), signal.SIGKILL)
    try:
        process.wait(10 if children else 0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def delete(directory: Path) -> None:
    """Delete a directory if it exists; refuse if anything is mounted below it.

    Systems mount in namespaces of their own, which end with their processes: so nothing should be.
    """
    if not directory.exists():
        return
    mounts = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
    if found := mounted_below(str(directory.resolve()), mounts):
        raise OSError(f"{found} is mounted: unmount it, then delete {directory}")
    shutil.rmtree(directory)


def mounted_below(directory: str, mounts: Sequence[str]) -> str | None:
    """Return the first mount point at or below a directory, from the lines of /proc/mounts."""
    for line in mounts:
        point = line.split(" ")[1].replace("\\040", " ")
        if point == directory or point.startswith(directory.rstrip("/") + "/"):
            return point
    return None
