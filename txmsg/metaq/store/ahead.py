"""Records the queues whose messages may be read before they are on disk, so that no offset is assigned twice.

See docs/log_format.md, Ahead of the disk. Independent of frames.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Collection
from pathlib import Path
from typing import Final

from google_crc32c import value as crc32c

from txmsg.errors import StorageError
from txmsg.metaq.store.commit_log import sync_directory
from txmsg.metaq.store.state import QueueKey, write_whole
from txmsg.runtime.logs import EventLog
from txmsg.runtime.owners import refusal_text

_log = EventLog(__name__)

AHEAD_MAX: Final = 1_048_576
"""Offsets of a log that may be seen before their messages are on disk. An append beyond waits for the disk."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_BOOT: Final = "boot "
_OF_LEADER: Final = "leader"
"""Stands in the place of a boot id: never equal to this machine's."""


class AheadFile:
    """The file `ahead` of an open log: one line per queue, written before its first early message."""

    def __init__(self, root: Path) -> None:
        self._path = root / "ahead"
        self._named: set[QueueKey] = set()
        self._fd: int | None = None

    def __contains__(self, queue: QueueKey) -> bool:
        return queue in self._named

    def name(self, queues: Collection[QueueKey]) -> None:
        """Record that messages of these queues may be read early. On disk on return. Raises StorageError."""
        try:
            if self._fd is None:
                self._fd = self._begun()
            lines = b"".join(_line(f"{topic} {number}") for topic, number in queues)
            if os.write(self._fd, b"\n" + lines) != len(lines) + 1:  # the first byte ends a torn line
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fdatasync(self._fd)
        except OSError as exc:
            raise StorageError(
                f"{self._path} cannot be written: {refusal_text(exc, self._path)}; nothing was appended"
            ) from exc
        self._named.update(queues)

    def _begun(self) -> int:
        # Names of an earlier run are dropped: `pass_over_doubt` has dealt with them when the log was opened.
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, _line(_BOOT + _boot_id()))
            os.fdatasync(fd)
            sync_directory(self._path.parent)
        except OSError:
            os.close(fd)
            raise
        return fd

    def spoil(self) -> None:
        """Record that messages already read are about to be cut off; the next writer treats this like a power cut."""
        if self._fd is None:
            return
        try:
            with self._path.open("r+b") as file:  # in place: it needs no room
                # This breaks the checksum of the first line, which names the boot. Without that line the file counts as
                # one of an earlier boot, and all its queues are in doubt.
                file.write(b"?")
        except OSError as exc:
            _log.error(
                "log.ahead_unwritten",
                "%(path)s cannot be written (%(error)s): a reader that has seen messages which are cut off now may "
                "pass over others",
                path=self._path,
                error=exc,
            )

    def forget_queues(self) -> None:
        """Delete the file: everything is on disk, and the writer stops."""
        self.close()
        forget_doubt(self._path.parent)

    def close(self) -> None:
        """Close the file and leave it unchanged."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def queues_in_doubt(root: Path) -> list[QueueKey]:
    """Return the queues of which messages may have been read and lost. Empty after an orderly stop.

    Also empty if a process was killed while the machine kept running: the kernel has everything that was read.
    """
    try:
        lines = (root / "ahead").read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    texts = [text for line in lines if (text := _text(line)) is not None]
    # The same boot: at most the process was killed, and the kernel kept its writes (decision 0035).
    if texts[:1] == [_BOOT + _boot_id()]:
        return []
    queues: dict[QueueKey, None] = {}
    for topic, number in (text.split(" ") for text in texts if not text.startswith(_BOOT)):
        queues[topic, int(number)] = None
    return list(queues)


def leave_in_doubt(root: Path, queues: Collection[QueueKey]) -> None:
    """Record these queues in a log that is a copy: its leader may have assigned offsets that the copy never gets.

    The next writer, for example after a promotion, skips them. Raises StorageError.
    """
    lines = b"".join(_line(f"{topic} {number}") for topic, number in sorted(queues))
    write_whole(root / "ahead", _line(_BOOT + _OF_LEADER) + lines)


def forget_doubt(root: Path) -> None:
    """Delete the file: no queue is in doubt any more."""
    try:
        (root / "ahead").unlink()
    except FileNotFoundError:
        return
    sync_directory(root)


def _line(text: str) -> bytes:
    return f"{crc32c(text.encode()):08x} {text}\n".encode()


def _text(line: bytes) -> str | None:
    """Return the text of a line if it is whole: a torn one was written for messages that were not seen yet."""
    crc, _, text = line.partition(b" ")
    return text.decode() if crc == f"{crc32c(text):08x}".encode() else None


def _boot_id() -> str:
    """Return an id that changes each time the machine starts; a random one where the system tells none."""
    try:
        return BOOT_ID.read_text("ascii").strip()
    except OSError:
        return secrets.token_hex(16)
