"""The files of a group: members, owners of queues, and stored offsets.

A lock (flock) marks a live member and the owner of a queue: the kernel drops it with the process that holds it.
docs/log_format.md specifies the bytes.
"""

from __future__ import annotations

import fcntl
import json
import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from google_crc32c import value as crc32c

from txmsg.errors import CorruptLog
from txmsg.metaq.interface import LogQueue, Member
from txmsg.metaq.store.lock import make_private
from txmsg.metaq.store.state import write_whole

_ZONE: Final = "zone"
_SLOT = struct.Struct("<4sIQQ")
_MAGIC: Final = b"TXO1"
_SLOT_AT = (0, 32)
_OWNER_AT = 64
_OWNER_SIZE = 64
_FILE_SIZE = _OWNER_AT + _OWNER_SIZE


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Lock a group: one process at a time changes its members and its seeks. Raises FileNotFoundError without a
    group.
    """
    while True:
        fd = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # flock, as for members and queues: the kernel drops it with the process, so nothing expires and no clock
            # decides that another process is dead (decision 0022).
            fcntl.flock(fd, fcntl.LOCK_EX)
            if not _is_at(fd, directory / "lock"):
                continue  # the group was deleted, and perhaps created again, before the lock was ours
            yield
            return
        finally:
            _unlock(fd)


def _is_at(fd: int, path: Path) -> bool:
    """Return True if the open file is the one that has this name now."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(fd), path.stat())
    return False


def _try_lock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _unlock(fd: int) -> None:
    fcntl.flock(fd, fcntl.LOCK_UN)  # a forked child may have the file open, too: closing it here would not do
    os.close(fd)


# ---- members


class MemberFile:
    """The file of a live member: its lock is held until `close`."""

    def __init__(self, directory: Path, member: Member) -> None:
        """Create the file; only while the group is locked."""
        members = directory / "members"
        members.mkdir(mode=0o700, exist_ok=True)
        self._path = members / member.id
        beside = members / f".{member.id}"  # not seen before it is locked
        self._fd = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            told = {"topics": member.topics, "strategy": member.strategy, "zone": member.zone}
            os.write(self._fd, json.dumps(told).encode())
            # The rename is last: other processes take a file without a lock for that of a dead member, and delete it.
            beside.rename(self._path)
        except BaseException:
            _unlock(self._fd)
            beside.unlink(missing_ok=True)
            raise

    def is_there(self) -> bool:
        """Return False once the group's files were removed, so that other processes no longer see its owners."""
        return _is_at(self._fd, self._path)

    def close(self) -> None:
        """End the membership."""
        try:
            if self.is_there():
                self._path.unlink()
        finally:
            _unlock(self._fd)

    def close_in_child(self) -> None:
        """Drop a forked child's copy, and leave the lock to its parent: the child is not the member."""
        os.close(self._fd)


def members_in(directory: Path) -> list[Member]:
    """Return the live members, sorted. Removes the files of dead ones."""
    members: list[Member] = []
    with suppress(FileNotFoundError):
        for name in sorted(os.listdir(directory / "members")):
            if not name.startswith(".") and (member := _member(directory / "members" / name)):
                members.append(member)
    return members


def _member(path: Path) -> Member | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        # The lock is free, so the member is dead. Shared, so that several checks at the same time do not take each
        # other's lock for that of a living member.
        if _try_lock(fd, fcntl.LOCK_SH):
            path.unlink(missing_ok=True)
            return None
        told = json.loads(os.read(fd, 1024 * 1024))
        return Member(path.name, tuple(told["topics"]), told["strategy"], told["zone"])
    except (ValueError, KeyError, TypeError) as exc:
        raise CorruptLog(f"{path} cannot be read ({exc}): stop process {path.name}, or delete the file") from exc
    finally:
        os.close(fd)


# ---- the zone of the log


def set_zone(root: Path, zone: str) -> None:
    """Set the zone of the log, for members of all its groups. Empty: none."""
    if zone != zone_in(root):
        write_whole(root / _ZONE, zone.encode())


def zone_in(root: Path) -> str:
    """Return the zone of the log. See `set_zone`."""
    with suppress(FileNotFoundError):
        return (root / _ZONE).read_text()
    return ""


# ---- queues


def queue_file(directory: Path, queue: LogQueue) -> Path:
    """Return the file whose lock marks the owner of a queue, and whose bytes hold its stored offset."""
    return directory / "queues" / queue.topic / f"{queue.queue:04}"


def queues_in(directory: Path) -> list[LogQueue]:
    """Return the queues that any member has ever owned."""
    return sorted(
        LogQueue(path.parent.name, int(path.name)) for path in directory.glob("queues/*/*") if path.name.isdigit()
    )


class OwnedQueue:
    """An owned queue: its lock is held until `release`."""

    def __init__(self, path: Path, fd: int, owner: str) -> None:
        self._fd = fd
        found = _last_slot(path, os.pread(fd, _FILE_SIZE, 0))
        self._sequence = found[0] if found else 0
        self.offset = found[1] if found else None
        # For display only: the lock decides who owns the queue.
        os.pwrite(fd, owner.encode().ljust(_OWNER_SIZE, b"\0")[:_OWNER_SIZE], _OWNER_AT)

    @classmethod
    def taken(cls, path: Path, owner: str) -> OwnedQueue | None:
        """Take the queue; None if a member owns it."""
        make_private(path.parent, below=path.parents[2])
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # The group may be deleted between the open and the lock, which would then be on a file without a name,
            # while another member owns the queue by a new file.
            if _try_lock(fd, fcntl.LOCK_EX) and _is_at(fd, path):
                return cls(path, fd, owner)
        except BaseException:
            _unlock(fd)
            raise
        os.close(fd)
        return None

    @property
    def stored(self) -> int:
        """The offset, once one is stored."""
        assert self.offset is not None
        return self.offset

    def store(self, offset: int) -> None:
        """Store an offset; the one before stays until the new one is whole."""
        if offset == self.offset:
            return
        # Two slots in turn and no sync: a torn write leaves the other slot. After a power cut an earlier offset counts,
        # so messages are delivered again and none is skipped (decision 0022).
        sequence = self._sequence + 1
        slot = bytearray(_SLOT.pack(_MAGIC, 0, sequence, offset))
        slot[4:8] = crc32c(bytes(slot[8:])).to_bytes(4, "little")
        os.pwrite(self._fd, slot, _SLOT_AT[sequence % 2])
        self._sequence, self.offset = sequence, offset

    def release(self) -> None:
        """Let another member take it."""
        try:
            os.pwrite(self._fd, bytes(_OWNER_SIZE), _OWNER_AT)
        finally:
            _unlock(self._fd)

    def close_in_child(self) -> None:
        """Drop a forked child's copy, and leave the lock to its parent: the child is not the owner."""
        os.close(self._fd)


def _last_slot(path: Path, data: bytes) -> tuple[int, int] | None:
    """Return sequence and offset of the slot that was written last and is whole; None in a new file."""
    whole: list[tuple[int, int]] = []
    for at in _SLOT_AT:
        slot = data[at : at + _SLOT.size]
        if len(slot) == _SLOT.size:
            magic, crc, sequence, offset = _SLOT.unpack(slot)
            if magic == _MAGIC and crc == crc32c(slot[8:]):
                whole.append((sequence, offset))
    # Bytes without a whole slot are damage, not a new file: the begin of the group would deliver everything again.
    if not whole and any(data[:_OWNER_AT]):
        raise CorruptLog(f"the offset stored in {path} cannot be read: delete the file, then seek the group")
    return max(whole, default=None)


def offset_in(path: Path) -> int | None:
    """Return the stored offset; None before the first one is stored."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    found = _last_slot(path, data)
    return found and found[1]


def owner_in(path: Path) -> str | None:
    """Return the member that took the queue last and has not released it; it may be dead."""
    with suppress(FileNotFoundError):
        return path.read_bytes()[_OWNER_AT:].rstrip(b"\0").decode("utf-8", "replace") or None
    return None


# ---- where a group begins


def begins_in(directory: Path) -> dict[str, dict[int, int]]:
    """Return the topics that a group knows, and its begins in their queues, if not at the first message that is
    kept.
    """
    path = directory / "begins.json"
    try:
        told = json.loads(path.read_bytes())
        return {
            topic: {int(queue): int(offset) for queue, offset in offsets.items()} for topic, offsets in told.items()
        }
    except FileNotFoundError:
        return {}
    except (ValueError, AttributeError) as exc:
        raise CorruptLog(f"{path} cannot be read ({exc}): delete the file, then seek the group") from exc


def write_begins(directory: Path, begins: Mapping[str, Mapping[int, int]]) -> None:
    """Replace the begins, on disk. Only while the group is locked."""
    write_whole(directory / "begins.json", json.dumps(begins, sort_keys=True).encode())


# ---- seeks


def _sought_file(directory: Path, queue: LogQueue) -> Path:
    return directory / "sought" / f"{queue.topic}-{queue.queue:04}"


def seek_to(directory: Path, queue: LogQueue, offset: int) -> None:
    """Ask the owner to continue at these offsets. Only while the group is locked."""
    path = _sought_file(directory, queue)
    # A file per queue, because the owner may be another process, which looks for it at its next view.
    path.parent.mkdir(mode=0o700, exist_ok=True)
    write_whole(path, str(offset).encode())


def sought_in(directory: Path) -> dict[LogQueue, int]:
    """Return the pending seeks."""
    sought: dict[LogQueue, int] = {}
    with suppress(FileNotFoundError):
        for name in os.listdir(directory / "sought"):
            topic, _, number = name.rpartition("-")
            if number.isdigit() and (offset := offset_sought(directory, LogQueue(topic, int(number)))) is not None:
                sought[LogQueue(topic, int(number))] = offset
    return sought


def offset_sought(directory: Path, queue: LogQueue) -> int | None:
    """Return the offset of a pending seek of this queue; None without one."""
    with suppress(FileNotFoundError):
        return int(_sought_file(directory, queue).read_bytes())
    return None


def forget_sought(directory: Path, queue: LogQueue) -> None:
    """Delete a completed seek. Only while the group is locked."""
    _sought_file(directory, queue).unlink(missing_ok=True)
