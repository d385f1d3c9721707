"""Cached directories of programs for tests, downloaded or built once."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable
from pathlib import Path


def cached(name: str) -> Path:
    """Return the cached directory of this name, whether it exists or not."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache, "txmsg-tests", name)


def brought(name: str, bring: Callable[[Path], Path], *, by: str) -> Path:
    """Return the directory of this name, created if it is missing. Safe to call from several processes: one at a time
    runs the program that `by` names.

    bring: called with an empty directory if it is missing; returns the directory in it to keep. If it raises, the error
    is raised and nothing is kept.
    """
    directory = cached(name)
    directory.parent.mkdir(parents=True, exist_ok=True)
    with (directory.parent / f"{by}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not directory.exists():
            with tempfile.TemporaryDirectory(dir=directory.parent) as made:
                bring(Path(made)).rename(directory)
    return directory
