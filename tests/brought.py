"""Directories of programs that tests run, brought once into the user's cache by what installs them."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable
from pathlib import Path


def cached(name: str) -> Path:
    """Where the directory of this name is, once it is there."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache, "txmsg-tests", name)


def brought(name: str, bring: Callable[[Path], Path], *, by: str) -> Path:
    """The directory of this name. Processes may call it at once: one at a time runs the program that `by` names.

    bring: called when it is not there yet, with an empty directory; returns the one in it that is to be kept. What it
    raises is raised, and nothing is kept.
    """
    directory = cached(name)
    directory.parent.mkdir(parents=True, exist_ok=True)
    with (directory.parent / f"{by}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not directory.exists():
            with tempfile.TemporaryDirectory(dir=directory.parent) as made:
                bring(Path(made)).rename(directory)
    return directory
