"""Settings of a tailer, checked when they are made."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from txmsg.errors import MisuseError, shown

ALL_TOPICS: Final = ("*",)
_NAME = re.compile(r"[a-z][a-z0-9_]{0,29}\Z")
_PATTERN = re.compile(r"[A-Za-z0-9._%*?-]{1,127}\Z")


def check_mirror_name(name: str) -> str:
    """`name` if it can name a mirror, whose slot and publication are named after it; else MisuseError."""
    if not _NAME.match(name):
        raise MisuseError(f"mirror {shown(name)}: use a letter and up to 29 of the characters a-z 0-9 _")
    return name


def check_patterns(patterns: tuple[str, ...]) -> tuple[str, ...]:
    """The patterns if they can fit names of topics; else MisuseError."""
    for pattern in patterns:
        if not _PATTERN.match(pattern):
            raise MisuseError(
                f"pattern {shown(pattern)} cannot match a topic name: use A-Z a-z 0-9 . _ - % with * and ?"
            )
    return patterns


@dataclass(frozen=True, slots=True, kw_only=True)
class TailerConfig:
    """One mirror, and how it is kept up."""

    storage: str
    """The Notify database, as libpq takes it: postgresql://..."""
    mirror: str = "metaq"
    """Names the mirror in its database, and its slot and publication."""
    topics: tuple[str, ...] | None = None
    """Patterns of topics, with * and ?. None: as the mirror was made, for a new one all."""
    exclude: tuple[str, ...] | None = None
    """Patterns of topics that are left out. None: as the mirror was made, for a new one none."""
    refill_size_bytes: int = 8 * 1024 * 1024
    """What is read from the table before it is appended. Default 8 MiB."""
    position_s: float = 1.0
    """Seconds between two notes in the database of how far the mirror is. Default 1."""
    compare_s: float = 30.0
    """Seconds between two looks whether anything in the table has not come by replication. Default 30."""
    wait_s_max: float = 5.0
    """Longest wait between two tries while the database, or the log, is away. Default 5."""

    def __post_init__(self) -> None:
        check_mirror_name(self.mirror)
        check_patterns(self.topics or ())
        check_patterns(self.exclude or ())
