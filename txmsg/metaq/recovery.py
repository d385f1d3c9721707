"""What a crash may have left, told apart: whole frames, a torn end, damage; and small files replaced as a whole."""

from __future__ import annotations

import json
import os
import secrets
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from google_crc32c import value as crc32c

from txmsg.errors import CorruptLog
from txmsg.metaq.commit_log import CommitLogReader, files_of, log_file, sync_directory
from txmsg.metaq.frame import MAGIC, BadFrame, Header, read_header, verify

__all__ = ["Identity", "checkpoint_of", "frames", "identity_of", "torn_end", "write_checkpoint", "write_whole"]

_CHECKPOINT = struct.Struct("<4sIQQ")
_CHECKPOINT_MAGIC = b"TXC1"
VERSION = 1


@dataclass(frozen=True, slots=True)
class Identity:
    """Which log this is. generation: rises when the log goes on after the table it mirrors has diverged."""

    log_id: int
    generation: int = 1


def write_whole(path: Path, data: bytes) -> None:
    """Replaces a file so that after a power cut it is the old one or the new one."""
    beside = path.with_name(path.name + ".new")
    with beside.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    sync_directory(path.parent)


def identity_of(root: Path, *, create: bool) -> Identity:
    """What `log.json` says; made for a new log. Raises CorruptLog for another version, or when it cannot be read."""
    path = root / "log.json"
    if create and not path.exists() and not files_of(root / "commitlog", ".log"):
        identity = Identity(secrets.randbits(63))
        write_identity(root, identity)
        return identity
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["version"] != VERSION:
            raise CorruptLog(f"{root} is a log of format {found['version']}: this release reads format {VERSION}")
        return Identity(int(found["log_id"]), int(found["generation"]))
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise CorruptLog(f"{path} cannot be read ({exc}): `txmsg metaq check --repair` makes it anew") from exc


def write_identity(root: Path, identity: Identity) -> None:
    """Writes `log.json`."""
    told = {"version": VERSION, "log_id": identity.log_id, "generation": identity.generation}
    write_whole(root / "log.json", json.dumps(told).encode())


def checkpoint_of(root: Path, log_id: int) -> int:
    """Up to which position cells are complete; 0 when that is not known, so that everything is read."""
    try:
        data = (root / "checkpoint").read_bytes()
    except FileNotFoundError:
        return 0
    if len(data) != _CHECKPOINT.size:
        return 0
    magic, crc, position, of_log = _CHECKPOINT.unpack(data)
    if magic != _CHECKPOINT_MAGIC or crc != crc32c(data[8:]) or of_log != log_id:
        return 0
    return int(position)


def write_checkpoint(root: Path, log_id: int, position: int) -> None:
    """Notes that all cells of frames before this position are on disk."""
    data = bytearray(_CHECKPOINT.pack(_CHECKPOINT_MAGIC, 0, position, log_id))
    data[4:8] = crc32c(bytes(data[8:])).to_bytes(4, "little")
    write_whole(root / "checkpoint", bytes(data))


def frames(log: CommitLogReader, log_id: int, start: int, end: int) -> Iterator[Header]:
    """The headers of whole frames from `start` on. Raises DamagedFrame at the first that is not."""
    position = start
    firsts = files_of(log.directory, ".log")
    bounds = dict(zip(firsts, [*firsts[1:], end], strict=False))  # none at all in a new log
    while position < end:
        file_end = next(bound for first, bound in bounds.items() if first <= position < bound)
        try:
            yield (header := whole_frame(log, log_id, position, file_end))
        except BadFrame as exc:
            raise DamagedFrame(position, str(exc)) from exc
        position = header.end


class DamagedFrame(Exception):
    """What stands at `position` is no whole frame."""

    def __init__(self, position: int, why: str) -> None:
        super().__init__(f"position {position}: {why}")
        self.position = position


def whole_frame(log: CommitLogReader, log_id: int, position: int, end: int) -> Header:
    """The header of the frame at this position, whose payload matches its checksum, too. Raises BadFrame."""
    data = log.read(position, end - position)
    header = read_header(data)
    if header.position != position:
        raise BadFrame(f"a frame written for position {header.position} stands there")
    if header.log_id != log_id:
        raise BadFrame("a frame of another log stands there")
    verify(header, data)
    if header.size_bytes > len(data):
        raise BadFrame("the frame is cut off")
    return header


def torn_end(log: CommitLogReader, log_id: int, position: int, end: int) -> bool:
    """Whether what is not whole at `position` is the torn end of a crash: no later frame says it was on disk."""
    for first in files_of(log.directory, ".log"):
        file_end = first + log_file(log.directory, first).stat().st_size
        start = max(first, position + 1)
        while start < file_end:
            data = bytes(log.read(start, file_end - start))
            place = data.find(MAGIC)
            if place < 0:
                break
            start += place
            try:
                header = whole_frame(log, log_id, start, file_end)
            except BadFrame:
                start += 1
                continue
            if header.synced > position:
                return False
            start = header.end
    return True
