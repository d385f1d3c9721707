"""The role of a log: leader, copy, or superseded. Two small files beside it. Independent of frames.

See docs/log_format.md, Copies.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from txmsg.errors import CorruptLog, NotLeader
from txmsg.metaq.store.commit_log import sync_directory
from txmsg.metaq.store.state import read_checked, write_checked

_COPY: Final = "copy.json"
_FENCE: Final = "fence.json"


@dataclass(frozen=True, slots=True)
class CopyOf:
    """A copy's own state. id: identifies the copy. is_begun: it has everything that a log needs."""

    leader: str
    id: bytes
    is_begun: bool


def copy_of(root: Path) -> CopyOf | None:
    """Return the log that this one is a copy of; None for a log that leads. Raises CorruptLog."""
    try:
        found = read_checked(root / _COPY)
        return CopyOf(str(found["leader"]), bytes.fromhex(found["id"]), bool(found["is_begun"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise CorruptLog(
            f"{root / _COPY} cannot be read ({exc}): move {root} away, and begin the copy again with "
            "`txmsg metaq follow`"
        ) from exc


def write_copy(root: Path, copy: CopyOf) -> None:
    """Record that the log is a copy. On disk on return."""
    write_checked(root / _COPY, {"leader": copy.leader, "id": copy.id.hex(), "is_begun": copy.is_begun})


def forget_copy(root: Path) -> None:
    """Make the log lead from now on."""
    # The fence first: a crash in between leaves a copy, which can be promoted again. The other way round it would be a
    # leader that refuses every append.
    _remove(root / _FENCE)
    _remove(root / _COPY)


def require_no_copy(root: Path) -> None:
    """Raise NotLeader for a copy, which accepts only its leader's changes."""
    if (root / _COPY).exists():
        raise not_leader(root, "it is a copy")


def not_leader(root: Path, why: str) -> NotLeader:
    """Return the error of a log that accepts no changes."""
    copy = copy_of(root)
    if copy is None:
        return NotLeader(
            f"the log {root} takes no changes: {why}; use that one, and have this one follow it with "
            "`txmsg metaq follow`"
        )
    return NotLeader(
        f"the log {root} takes no changes: {why} of the log at {copy.leader}: use that one, or make this one the "
        "leader with `txmsg metaq promote`"
    )


@dataclass(frozen=True, slots=True)
class GenerationFence:
    """The generation by which a log was superseded, and the id of the copy that continues under it."""

    generation: int
    copy_id: bytes


def fence_of(root: Path) -> GenerationFence | None:
    """Return the fence that superseded this log, if any."""
    try:
        found = read_checked(root / _FENCE)
        return GenerationFence(int(found["generation"]), bytes.fromhex(found["copy"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise CorruptLog(
            f"{root / _FENCE} cannot be read ({exc}): a copy of the log may have been promoted; if it was not, delete "
            "the file"
        ) from exc


def write_fence(root: Path, fence: GenerationFence) -> None:
    """Record that a later generation has begun elsewhere. On disk on return."""
    write_checked(root / _FENCE, {"generation": fence.generation, "copy": fence.copy_id.hex()})


def forget_fence(root: Path) -> None:
    """Record that the log follows the one that has superseded it."""
    _remove(root / _FENCE)


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    sync_directory(path.parent)
