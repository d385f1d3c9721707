"""A small disk that a test can fill: a tmpfs, which only root may mount; otherwise the test is skipped."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

_NEARLY_FULL: Final = b" WARNING txmsg.metaq.server.disk: "


@contextmanager
def small_disk(size_bytes: int) -> Iterator[Path]:
    """A small file system that the PostgreSQL user can access, unlike root's tmp_path."""
    place = Path(tempfile.mkdtemp(prefix="txmsg-disk-"))
    place.chmod(0o755)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes},mode=0777", "tmpfs", str(place)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        place.rmdir()
        pytest.skip(f"a small file system cannot be mounted here: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)
        place.rmdir()


def fill(disk: Path, *, leave: int) -> Path:
    """Write a file that leaves so many bytes free, and return it to be deleted."""
    ballast = disk / "ballast"
    free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, free - leave)
    return ballast


@contextmanager
def read_only(disk: Path) -> Iterator[None]:
    """Make the file system read-only during the block. No file of it may be open for writing."""
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    try:
        yield
    finally:
        subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)


def but_for_the_disk(said: bytes) -> bytes:
    """Return the output of processes without warnings that the disk of their log is nearly full, which may be true."""
    return b"".join(line for line in said.splitlines(keepends=True) if _NEARLY_FULL not in line)
