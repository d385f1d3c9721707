"""Settings of the topics of a log: flush, compression, retention, and which queues are written and read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from txmsg.errors import CorruptLog, MisuseError, StorageError
from txmsg.message import QUEUES_MAX, check_name
from txmsg.metaq.format.frame import Compression
from txmsg.metaq.store.state import read_checked, write_checked


class Flush(StrEnum):
    """The time at which appends of a topic are on disk."""

    SYNC = "sync"
    """On disk before `append` returns; one fdatasync for all that wait."""
    TIMED = "timed"
    """Within `flush_s` of the log's configuration: a power cut may take what came last."""


class Permission(StrEnum):
    """The kinds of access that a topic allows. Not a user's right: it applies to all users."""

    READ_WRITE = "rw"
    READ = "r"
    """Appends are refused; consumers read on."""
    WRITE = "w"
    """No member of a group is assigned its queues; appends continue."""
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """The settings of a topic, stored in `topics.json`. Changes apply from the next append on."""

    flush: Flush = Flush.SYNC
    """The time at which its appends are on disk. Default: before `append` returns."""
    compression: Compression = Compression.NONE
    """The compression by a `LogProducer`. Default: none, which is read without a copy."""
    retention_s: float | None = None
    """Age that its messages reach at least. Default None: that of the log.

    A file is deleted when all topics in it allow it.
    """
    write_queues: int | None = None
    """A `LogProducer` appends to so many queues, from 0 on. Default None: as many as the producer says."""
    read_queues: int | None = None
    """So many queues, from 0 on, are assigned to members of groups. Default None: all. Appends to others are refused,
    so that nothing is left unread; that of a mirror is not."""
    permission: Permission = Permission.READ_WRITE
    """The access of producers and of members of groups. Default: both. The mirror of a table always appends."""

    def __post_init__(self) -> None:
        if not isinstance(self.flush, Flush):  # a str compares equal, and is another
            raise MisuseError(f"flush={self.flush!r} of a topic: give Flush.SYNC or Flush.TIMED")
        if self.retention_s is not None and self.retention_s <= 0:
            raise MisuseError(f"retention_s={self.retention_s} of a topic: give seconds above 0, or None for the log's")
        for name, count in (("write_queues", self.write_queues), ("read_queues", self.read_queues)):
            if count is not None and not 1 <= count <= QUEUES_MAX:
                raise MisuseError(f"{name}={count} of a topic: 1 to {QUEUES_MAX} are allowed, or None")
        if self.read_queues is not None and (self.write_queues is None or self.write_queues > self.read_queues):
            raise MisuseError(
                f"read_queues={self.read_queues} and write_queues={self.write_queues} of a topic: messages of "
                "some queues would not be read; give write_queues up to read_queues"
            )
        if not isinstance(self.permission, Permission):
            raise MisuseError(f"permission={self.permission!r} of a topic: give one of Permission")

    def takes(self, queue: int) -> bool:
        """Return True if appends to this queue are accepted: also if it is no longer written to, but still read."""
        is_open = self.permission in {Permission.READ_WRITE, Permission.WRITE}
        return is_open and (self.read_queues is None or queue < self.read_queues)

    def gives(self, queue: int) -> bool:
        """Return True if this queue is assigned to members of groups."""
        is_open = self.permission in {Permission.READ_WRITE, Permission.READ}
        return is_open and (self.read_queues is None or queue < self.read_queues)

    def _require_takes(self, topic: str, queue: int) -> None:
        """Raise MisuseError unless appends to this queue are accepted."""
        if self.takes(queue):
            return
        if self.permission in {Permission.READ, Permission.NONE}:
            what, way_out = f"topic {topic} has permission {self.permission}", "--permission rw"
        else:
            what = f"queue {queue} of topic {topic} is not read, but 0 to {(self.read_queues or 0) - 1}"
            way_out = f"--read-queues {queue + 1}"
        raise MisuseError(f"{what}: nothing was appended; allow it with `txmsg metaq set {topic} --log LOG {way_out}`")

    def _queue_that_is_read(self, queue: int) -> int:
        """Return this queue, or if it is no longer read, one that is."""
        return queue if self.read_queues is None else queue % self.read_queues

    def values(self) -> dict[str, object]:
        """Return the settings as JSON values."""
        return {
            "flush": self.flush.value,
            "compression": self.compression.name.lower(),
            "retention_s": self.retention_s,
            "write_queues": self.write_queues,
            "read_queues": self.read_queues,
            "permission": self.permission.value,
        }


class TopicSettingsStore:
    """Settings of topics, for the writer of a log. default: of topics without settings."""

    def __init__(self, root: Path, default: TopicSettings) -> None:
        """Read the settings. Raises CorruptLog when they cannot be read."""
        self._root = root
        self._default = default
        self._setting = threading.Lock()
        self._topics = read_topics(root)

    def of(self, topic: str) -> TopicSettings:
        """Return the settings that were set, or the default."""
        return self._topics.get(topic, self._default)

    def set(self, topic: str, settings: TopicSettings, checkpoint: Callable[[], None]) -> None:
        """Set the settings of a topic, from the next append on; stored in the log. Raises StorageError.

        checkpoint: called before a topic becomes synchronous on disk. Cells of a timed topic may be ahead of the disk;
        those of a synchronous one must not.
        """
        check_name("topic", topic)
        with self._setting:
            before, topics = self._topics, {**self._topics, topic: settings}
            if settings.flush is Flush.SYNC:
                try:
                    # From now on appends wait for the disk. The checkpoint covers the cells of earlier timed appends
                    # before the file says that the topic is synchronous: recovery takes cells of a synchronous topic
                    # for proof.
                    self._topics = topics
                    checkpoint()
                    write_topics(self._root, topics)
                except StorageError:
                    self._topics = before
                    raise
            else:
                write_topics(self._root, topics)
                self._topics = topics


def read_topics(root: Path) -> dict[str, TopicSettings]:
    """Return the topics that have settings. Raises CorruptLog if they cannot be read."""
    path = root / "topics.json"
    try:
        found = read_checked(path)
        return {check_name("topic", name): _settings_of(values) for name, values in found["topics"].items()}
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise CorruptLog(f"{path} cannot be read ({exc}): delete it, and all topics are synchronous") from exc


def write_topics(root: Path, topics: Mapping[str, TopicSettings]) -> None:
    """Replace the settings of all topics, on disk."""
    write_checked(root / "topics.json", {"topics": {name: settings.values() for name, settings in topics.items()}})


def _settings_of(values: Mapping[str, Any]) -> TopicSettings:
    return TopicSettings(
        flush=Flush(values["flush"]),
        compression=Compression[values["compression"].upper()],
        retention_s=values["retention_s"],
        write_queues=values["write_queues"],
        read_queues=values["read_queues"],
        permission=Permission(values["permission"]),
    )
