"""A process's events, as JSON lines in its own file, which survives SIGKILL. Times: CLOCK_MONOTONIC."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Entry = list[Any]
"""Monotonic time, wall clock, word, then the values of the word."""


class Journal:
    """Appends entries. Each is one write, so that entries before a SIGKILL are kept; nothing is synced."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, word: str, *values: object) -> None:
        line = json.dumps([time.monotonic(), time.time(), word, *values], separators=(",", ":")) + "\n"
        os.write(self._fd, line.encode())

    def close(self) -> None:
        os.close(self._fd)


class Journals:
    """Reads all journals of a directory repeatedly: each entry once."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._positions: dict[Path, int] = {}

    def new(self) -> Iterator[tuple[str, Entry]]:
        """Yield the process name and its new entries. An incomplete line is returned later."""
        for path in sorted(self._directory.glob("*.jsonl")):
            with path.open("rb") as file:
                file.seek(self._positions.get(path, 0))
                data = file.read()
            whole, newline, _ = data.rpartition(b"\n")
            self._positions[path] = self._positions.get(path, 0) + len(whole) + len(newline)
            for line in whole.splitlines():
                yield path.stem, json.loads(line)
