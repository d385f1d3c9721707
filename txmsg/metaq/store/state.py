"""The small files of a log, each replaced as a whole: the log's identity, and its checkpoint."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from google_crc32c import value as crc32c

from txmsg.errors import CorruptLog, StorageError
from txmsg.metaq.store.commit_log import files_of, sync_directory
from txmsg.runtime.owners import refusal_text

VERSION: Final = 1
_CHECKSUM: Final = "crc32c"

QueueKey: TypeAlias = tuple[str, int]
"""A topic and the number of a queue."""


@dataclass(frozen=True, slots=True)
class LogIdentity:
    """The identity of a log. generation: increases when the log continues after the mirrored table has diverged."""

    log_id: int
    generation: int = 1


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state known to be on disk. begin: the first position kept; ends: where each queue ended before `position`."""

    position: int
    begin: int = 0
    ends: Mapping[QueueKey, int] = field(default_factory=dict)


def write_whole(path: Path, data: bytes) -> None:
    """Replace a file so that after a power cut it is the old one or the new one. Raises StorageError."""
    beside = path.with_name(path.name + ".new")
    try:
        # Contents, then name, then directory, each on disk before the next: in another order a power cut could leave
        # the name with an empty file.
        with open(beside, "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
        sync_directory(path.parent)
    except OSError as exc:
        raise StorageError(f"{path} cannot be written: {refusal_text(exc, path)}") from exc


def write_checked(path: Path, told: Mapping[str, Any]) -> None:
    """Replace a small file by this JSON object and its checksum. Raises StorageError."""
    write_whole(path, _checked(told))


def read_checked(path: Path) -> dict[str, Any]:
    """Return the object that `write_checked` has written, to the byte; else raise ValueError. Raises FileNotFoundError.

    Raises StorageError for a file that the system does not let this process read: it is not known to be damaged.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as exc:
        raise StorageError(f"{path} cannot be read: {refusal_text(exc, path)}") from exc
    told = json.loads(data)
    if not isinstance(told, dict) or _checked({k: v for k, v in told.items() if k != _CHECKSUM}) != data:
        raise ValueError("it does not match its checksum")
    del told[_CHECKSUM]
    return told


def _checked(told: Mapping[str, Any]) -> bytes:
    checksum = crc32c(json.dumps(told, sort_keys=True).encode())
    return json.dumps({**told, _CHECKSUM: checksum}, sort_keys=True).encode()


def identity_of(root: Path, *, create: bool) -> LogIdentity:
    """Return the contents of `log.json`; created for a new log.

    Raises CorruptLog for another version, or if it is missing or damaged.
    """
    path = root / "log.json"
    # Only in a directory without frames: under a new id every existing frame would be one of another log.
    if create and not path.exists() and not files_of(root / "commitlog", ".log"):
        identity = LogIdentity(secrets.randbits(63))
        write_identity(root, identity)
        return identity
    try:
        found = read_checked(path)
        if found["version"] != VERSION:
            raise CorruptLog(f"{root} is a log of format {found['version']}: this release reads format {VERSION}")
        return LogIdentity(int(found["log_id"]), int(found["generation"]))
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise CorruptLog(f"{path} cannot be read ({exc}): `txmsg metaq check --repair` recreates it") from exc


def write_identity(root: Path, identity: LogIdentity) -> None:
    """Write `log.json`."""
    told = {"version": VERSION, "log_id": identity.log_id, "generation": identity.generation}
    write_checked(root / "log.json", told)


def checkpoint_of(root: Path, log_id: int) -> Checkpoint | None:
    """Return the checkpoint of this log; None if there is none, so that everything is read."""
    try:
        found = read_checked(root / "checkpoint")
        if found["log_id"] != log_id:
            return None
        ends = {(topic, int(queue)): end for topic, of in found["ends"].items() for queue, end in of.items()}
        return Checkpoint(found["position"], found["begin"], ends)
    # A damaged checkpoint counts as none: everything is read, which is slow and always right.
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return None


def write_checkpoint(root: Path, log_id: int, checkpoint: Checkpoint) -> None:
    """Record that the cells of all frames before a position are on disk, and where their queues end."""
    ends: dict[str, dict[str, int]] = {}
    for (topic, queue), end in checkpoint.ends.items():
        ends.setdefault(topic, {})[str(queue)] = end
    told = {"log_id": log_id, "position": checkpoint.position, "begin": checkpoint.begin, "ends": ends}
    write_checked(root / "checkpoint", told)
