"""The position up to which each file of a source is read, on disk: replaced as a whole, with a checksum."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from txmsg.errors import StorageError
from txmsg.metaq.agent.stream import FollowedFile
from txmsg.metaq.store.state import read_checked, write_checked

_VERSION = 1


def read_positions(path: Path) -> list[FollowedFile] | None:
    """Return the files, not opened, or None if the source has never run. Raises StorageError for damaged positions."""
    try:
        told = read_checked(path)
        if told["version"] != _VERSION:
            raise ValueError(f"it is of version {told['version']}")
        return [FollowedFile.of(each) for each in told["files"]]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise StorageError(
            f"{path} cannot be read ({exc}): delete it, and all files of the source are read from their beginning, "
            "under other ids"
        ) from exc


def write_positions(path: Path, streams: Iterable[FollowedFile]) -> None:
    """Write the positions, on disk on return. Raises StorageError."""
    streams = list(streams)
    write_checked(path, {"version": _VERSION, "files": [stream.told() for stream in streams]})
    for stream in streams:
        stream.is_saved = True
