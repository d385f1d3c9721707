"""Settings of the topics of a log: flush, compression, retention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from txmsg.errors import CorruptLog, MisuseError
from txmsg.message import check_name
from txmsg.metaq.format.frame import Compression
from txmsg.metaq.store.state import read_checked, write_checked


class Flush(StrEnum):
    """When appends of a topic are on disk."""

    SYNC = "sync"
    """On disk before `append` returns; one fdatasync for all that wait."""
    TIMED = "timed"
    """Within `flush_s` of the log's configuration: a power cut may take what came last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """The settings of a topic, kept in `topics.json`. Changes hold from the next append on."""

    flush: Flush = Flush.SYNC
    """When its appends are on disk. Default: before `append` returns."""
    compression: Compression = Compression.NONE
    """The compression by a `LogProducer`. Default: none, which is read without a copy."""
    retention_s: float | None = None
    """Age that its messages reach at least. Default None: that of the log. A file goes when all in it have let go."""

    def __post_init__(self) -> None:
        if not isinstance(self.flush, Flush):  # a str compares equal, and is another
            raise MisuseError(f"flush={self.flush!r} of a topic: give Flush.SYNC or Flush.TIMED")
        if self.retention_s is not None and self.retention_s <= 0:
            raise MisuseError(f"retention_s={self.retention_s} of a topic: give seconds above 0, or None for the log's")


def read_topics(root: Path) -> dict[str, TopicSettings]:
    """The topics that have settings of their own. Raises CorruptLog when they cannot be read."""
    path = root / "topics.json"
    try:
        found = read_checked(path)
        return {check_name("topic", name): _settings_of(values) for name, values in found["topics"].items()}
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise CorruptLog(f"{path} cannot be read ({exc}): delete it, and all topics are synchronous") from exc


def write_topics(root: Path, topics: Mapping[str, TopicSettings]) -> None:
    """Replaces the settings of all topics, on disk."""
    write_checked(root / "topics.json", {"topics": {name: _told(settings) for name, settings in topics.items()}})


def _told(settings: TopicSettings) -> dict[str, object]:
    return {
        "flush": settings.flush.value,
        "compression": settings.compression.name.lower(),
        "retention_s": settings.retention_s,
    }


def _settings_of(values: Mapping[str, Any]) -> TopicSettings:
    return TopicSettings(
        flush=Flush(values["flush"]),
        compression=Compression[values["compression"].upper()],
        retention_s=values["retention_s"],
    )
