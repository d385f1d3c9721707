"""The findings of a check of a log, for people and for JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field


@dataclass(frozen=True, slots=True)
class Lost:
    """Offsets of a queue that cannot be read any more."""

    topic: str
    queue: int
    begin: int
    end: int

    def __str__(self) -> str:
        return f"topic {self.topic} queue {self.queue} offsets {self.begin} to {self.end - 1}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A difference from docs/log_format.md."""

    file: str
    """The file's path from the log's directory."""
    text: str
    position: int | None = None
    lost: tuple[Lost, ...] = ()
    way_out: str = "`txmsg metaq check --repair` mends it"

    def __str__(self) -> str:
        where = self.file if self.position is None else f"{self.file} (position {self.position})"
        lost = f"; lost: {', '.join(map(str, self.lost))}" if self.lost else ""
        return f"{where}: {self.text}{lost}; {self.way_out}"


@dataclass(slots=True)
class LogCheckReport:
    """A check of a whole log."""

    root: str
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Useful facts that are not damage."""
    holes: list[Lost] = field(default_factory=list)
    """Offsets that the log itself says are missing."""
    begin: int = 0
    end: int = 0
    frames: int = 0
    messages: int = 0
    queues: int = 0
    read_bytes: int = 0

    @property
    def lost(self) -> int:
        """The number of messages that cannot be read any more and that the log does not yet mark as lost."""
        return sum(lost.end - lost.begin for problem in self.problems for lost in problem.lost)

    def values(self) -> dict[str, object]:
        """Return all of it as JSON values."""
        return {**asdict(self), "damaged": bool(self.problems), "lost_messages": self.lost}
