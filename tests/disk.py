"""A disk with slow syncs that loses unsynced writes in a power cut: `disk.c`, preloaded.

    disk = Disk(directory)
    disk.prepare()
    process = start(..., environment=disk.environment(forgets="/pg_wal/"))
    disk.set_delay(0.003)       # each sync takes 3 ms more; float("inf"): none ends before it is set to less
    process.kill()              # all processes that write to these files, and they have ended
    disk.forget(data)           # the files below `data` are as the last syncs left them

Everything that was not synced is forgotten, where a real disk may keep any part of it; `disk.c` says what stays all the
same. tests/metaq/power.py keeps parts, torn and mixed, of what a log in this process has not synced: this one is for
programs that are not ours, and for the time that a sync takes.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.preloaded import compile_library

_SOURCE: Final = Path(__file__).with_name("disk.c")
_CONTROL: Final = struct.Struct("=qq")
_DELAY: Final = struct.Struct("=q")
_HEAD: Final = struct.Struct("=qqq")
_RECORD: Final = struct.Struct("=qqq")
_DELAY_NS_MAX: Final = 2**62


@dataclass(frozen=True, slots=True)
class _Write:
    """The data that a write replaced: the former size of the file, and the bytes at `offset`."""

    size_bytes: int
    offset: int
    replaced: bytes


class Disk:
    """The disk of the programs started with its environment.

    Its files are in a directory that the users of these programs can enter. name: of the part of the disk that is
    forgotten by itself, where several databases share the directory and the delay.
    """

    def __init__(self, directory: Path, name: str = "disk") -> None:
        self._library = directory / "disk.so"
        self._control = directory / "disk.control"
        self._undo = directory / f"unsynced-{name}"

    @property
    def is_prepared(self) -> bool:
        """True if programs can be started with its environment."""
        return self._library.exists()

    @property
    def is_forgetful(self) -> bool:
        """True if writes are recorded for `forget`, which makes them slower."""
        return self._undo.exists()

    def prepare(self) -> None:
        """Compile the library. Raises OSError without a C compiler."""
        self._control.write_bytes(_CONTROL.pack(0, 0))
        self._control.chmod(0o666)  # the program may run as another user
        compile_library(_SOURCE, self._library)

    def environment(self, *, forgets: str | None = None) -> Mapping[str, str]:
        """Return the environment of a program. forgets: files with this text in their path lose unsynced writes."""
        environment = {"LD_PRELOAD": str(self._library), "DISK_CONTROL": str(self._control)}
        if forgets is not None:
            self.make_forgetful()
            environment |= {"DISK_UNDO": str(self._undo), "DISK_FORGETS": forgets}
        return environment

    def make_forgetful(self) -> None:
        """Create the place of the records of `forget`. Idempotent."""
        self._undo.mkdir(exist_ok=True)
        self._undo.chmod(0o777)  # the program may run as another user

    def set_delay(self, delay_s: float) -> None:
        """Delay each sync by so much from now on, including pending ones."""
        with self._control.open("r+b") as file:  # in place: it is mapped
            file.write(_DELAY.pack(round(min(delay_s * 1e9, _DELAY_NS_MAX))))

    def syncs(self) -> int:
        """The number of syncs begun."""
        _, syncs = _CONTROL.unpack(self._control.read_bytes())
        return int(syncs)

    def unsynced_bytes(self) -> int:
        """The number of bytes that a power cut would lose now."""
        return sum(end - start for path in self._undo_files() for start, end in [_head(path)])

    def forget(self, root: Path) -> int:
        """Restore the last synced contents of the files below a directory; returns the number of lost writes.

        No process may write to them meanwhile.
        """
        files = {str(path.stat().st_ino): path for path in root.rglob("*") if path.is_file()}
        taken = 0
        for undo in self._undo_files():
            if undo.name in files:  # else it was removed
                writes = list(_writes(undo))
                _take_back(files[undo.name], writes)
                taken += len(writes)
            undo.unlink()
        return taken

    def _undo_files(self) -> list[Path]:
        return list(self._undo.iterdir()) if self._undo.exists() else []


def _head(undo: Path) -> tuple[int, int]:
    """Return the start and end positions of the records."""
    with undo.open("rb") as file:
        start, end, _ = _HEAD.unpack(file.read(_HEAD.size).ljust(_HEAD.size, b"\0"))
    return start, end


def _writes(undo: Path) -> Iterator[_Write]:
    start, end = _head(undo)
    with undo.open("rb") as file:
        file.seek(start)
        while file.tell() < end:
            size_bytes, offset, length = _RECORD.unpack(file.read(_RECORD.size))
            yield _Write(size_bytes, offset, file.read(length))


def _take_back(path: Path, writes: list[_Write]) -> None:
    with path.open("r+b") as file:
        for write in reversed(writes):
            os.pwrite(file.fileno(), write.replaced, write.offset)
            os.ftruncate(file.fileno(), write.size_bytes)
