"""The small files of a log, each replaced as a whole: which log it is, and how far its cells are complete."""

from __future__ import annotations

import json
import os
import secrets
import struct
from dataclasses import dataclass
from pathlib import Path

from google_crc32c import value as crc32c

from txmsg.errors import CorruptLog, StorageError
from txmsg.metaq.commit_log import files_of, sync_directory

__all__ = ["Identity", "checkpoint_of", "identity_of", "write_checkpoint", "write_identity", "write_whole"]

_CHECKPOINT = struct.Struct("<4sIQQ")
_CHECKPOINT_MAGIC = b"TXC1"
VERSION = 1


@dataclass(frozen=True, slots=True)
class Identity:
    """Which log this is. generation: rises when the log goes on after the table it mirrors has diverged."""

    log_id: int
    generation: int = 1


def write_whole(path: Path, data: bytes) -> None:
    """Replaces a file so that after a power cut it is the old one or the new one. Raises StorageError."""
    beside = path.with_name(path.name + ".new")
    try:
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
        sync_directory(path.parent)
    except OSError as exc:
        raise StorageError(f"{path} cannot be written: {exc.strerror}; make room, or give this user the right") from exc


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
