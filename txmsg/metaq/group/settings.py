"""The settings of a group, as they stand in `settings.json`: docs/log_format.md specifies it.

A field that this release does not know is kept when others are changed: a later release has written it.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from txmsg.errors import CorruptLog, MisuseError
from txmsg.metaq.interface import LogGroupSettings
from txmsg.metaq.store.state import read_checked, write_checked, write_whole

_NAME: Final = "settings.json"
_VERSION: Final = 1


def settings_in(directory: Path) -> LogGroupSettings:
    """Return the settings of a group; defaults where nothing is set. Raises CorruptLog if they cannot be read."""
    return _settings_of(directory, _told(directory))


def alter_settings(
    directory: Path, *, stopped: bool | None, concurrency: int | None, rate_per_s: float | None
) -> LogGroupSettings:
    """Change the values that are not None, on disk, and return all settings after that. Only while the group is
    locked.
    """
    told = _told(directory)
    settings = _settings_of(directory, told).altered(stopped=stopped, concurrency=concurrency, rate_per_s=rate_per_s)
    known = {
        "version": _VERSION,
        "stopped": settings.stopped,
        "concurrency": settings.concurrency,
        "rate_per_s": settings.rate_per_s,
    }
    write_checked(directory / _NAME, {**told, **known})
    return settings


def settings_bytes(directory: Path) -> bytes:
    """Return the file's bytes, for copies; empty if nothing is set."""
    with suppress(FileNotFoundError):
        return (directory / _NAME).read_bytes()
    return b""


def write_settings_bytes(directory: Path, data: bytes) -> None:
    """Replace the file by that of the leader, on disk. Only while the group is locked."""
    if data == settings_bytes(directory):
        return
    if data:
        write_whole(directory / _NAME, data)
    else:
        (directory / _NAME).unlink(missing_ok=True)


def _told(directory: Path) -> dict[str, Any]:
    path = directory / _NAME
    try:
        told = read_checked(path)
    except FileNotFoundError:
        return {}
    except ValueError as exc:
        raise CorruptLog(f"{path} cannot be read ({exc}): delete the file, then alter the group again") from exc
    if told.get("version") != _VERSION:
        raise CorruptLog(
            f"{path} has version {told.get('version')}, and this release reads {_VERSION}: upgrade, or delete the file"
        )
    return told


def _settings_of(directory: Path, told: dict[str, Any]) -> LogGroupSettings:
    try:
        return LogGroupSettings(
            stopped=told.get("stopped", False),
            concurrency=told.get("concurrency"),
            rate_per_s=told.get("rate_per_s"),
        )
    except MisuseError as exc:
        raise CorruptLog(
            f"{directory / _NAME} cannot be read ({exc}): delete the file, then alter the group again"
        ) from exc
