"""A disk that forgets: unsynced data may be lost, whole or in part, in a power cut."""

from __future__ import annotations

import os
import random
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

from txmsg.metaq.store import ahead

_SECTOR_BYTES = 512


class ForgetfulDisk:
    """Wraps os.fsync and os.fdatasync, and records what each makes durable. The real files show the kernel's view."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._files: dict[int, bytes] = {}
        self._directories: dict[int, dict[str, int]] = {}
        self._held: dict[int, int] = {}  # so that inodes of deleted files are not reused
        monkeypatch.setattr(os, "fsync", self._sync)
        monkeypatch.setattr(os, "fdatasync", self._sync)
        self._of_machine = tempfile.TemporaryDirectory()
        self._boot_id = Path(self._of_machine.name) / "boot_id"
        self._boot_id.write_text("boot 0")
        monkeypatch.setattr(ahead, "BOOT_ID", self._boot_id)

    def _sync(self, fd: int) -> None:
        found = os.fstat(fd)
        if found.st_ino not in self._held:
            self._held[found.st_ino] = os.dup(fd)
        if stat.S_ISDIR(found.st_mode):
            self._directories[found.st_ino] = {each.name: each.inode() for each in os.scandir(fd)}
        else:
            self._files[found.st_ino] = Path(f"/proc/self/fd/{fd}").read_bytes()  # under any current name

    def sync_all(self, root: Path) -> None:
        """Make a whole directory durable, as it is."""
        self.sync(root, *root.rglob("*"))

    def sync(self, *paths: Path) -> None:
        """Make these files durable."""
        for path in paths:
            fd = os.open(path, os.O_RDONLY)
            self._sync(fd)
            os.close(fd)

    def close(self) -> None:
        """Close all files."""
        for fd in self._held.values():
            os.close(fd)
        self._of_machine.cleanup()

    def after_power_cut(self, root: Path, to: Path, choice: random.Random) -> None:
        """Write to `root` a possible state after a power cut: synced data, and a random part of the rest."""
        self._boot_id.write_text(f"boot {choice.random()}")
        self._remembered(root, to, choice)

    def _remembered(self, root: Path, to: Path, choice: random.Random) -> None:
        to.mkdir()
        synced = self._directories.get(root.stat().st_ino, {})
        for each in sorted(os.scandir(root), key=lambda each: each.name):
            if synced.get(each.name) != each.inode() and choice.random() < 0.5:
                continue  # the name was not synced
            path = Path(each.path)
            if each.is_dir():
                self._remembered(path, to / each.name, choice)
                continue
            with suppress(FileNotFoundError):  # it was renamed meanwhile, by a thread
                (to / each.name).write_bytes(self._content(path, choice))
        present = {each.inode() for each in os.scandir(root)}
        for name, inode in synced.items():
            if inode not in present and inode in self._files and not (to / name).exists() and choice.random() < 0.5:
                (to / name).write_bytes(self._files[inode])  # removed or replaced, but that was not synced

    def _content(self, path: Path, choice: random.Random) -> bytes:
        now = path.read_bytes()
        synced = self._files.get(path.stat().st_ino, b"")
        if synced == now:
            return now
        if "groups" in path.parts and len(now) <= _SECTOR_BYTES:  # written in place, and a disk writes a sector whole
            return choice.choice([synced, now, bytes(len(now))])
        if not now.startswith(synced):
            return choice.choice([synced, now])
        size = choice.randint(len(synced), len(now))
        torn = bytearray(now[: choice.choice([len(synced), size, len(now)])])
        if len(torn) > len(synced) and choice.random() < 0.5:  # the length reached the disk, the content did not
            start = choice.randint(len(synced), len(torn))
            torn[start : start + 50] = bytes(len(torn[start : start + 50]))
        return bytes(torn)
