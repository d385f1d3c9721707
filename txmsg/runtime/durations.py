"""Durations, times and sizes, as options take them (a timedelta) and as people write them (1h30m)."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

from txmsg.errors import MisuseError, shown

Seconds: TypeAlias = float | timedelta
"""The type of an option whose name ends in `_s`."""

UNITS_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_PART: Final = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)(ms|s|m|h|d)")
SIZE_UNITS: Final = {"": 1, "B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3, "TiB": 1024**4}
_TEXT_S_MAX: Final = 100 * 365 * 86_400


def check_seconds(name: str, value: object, *, least_s: float, most_s: float) -> float:
    """Return an option in seconds. Raises MisuseError outside of `least_s` to `most_s`."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, int | float) and not isinstance(seconds, bool) and least_s <= seconds <= most_s:
        return float(seconds)
    nan = " (not a number)" if isinstance(value, float) and math.isnan(value) else ""
    raise MisuseError(
        f"{name}={shown(value)}{nan} must be a number of seconds from {least_s:g} to {most_s:g}, or a timedelta"
    )


def in_seconds(value: Seconds) -> float:
    """Return a duration in seconds."""
    return value.total_seconds() if isinstance(value, timedelta) else value


def seconds_in(text: str) -> float | None:
    """Return the seconds of a text of numbers with ms, s, m, h or d, such as 1h30m. None for any other text."""
    if not re.fullmatch(f"({_PART.pattern})+", text):
        return None
    seconds = sum(float(number) * UNITS_S[unit] for number, unit in _PART.findall(text))
    return seconds if 0 < seconds <= _TEXT_S_MAX else None


def number_in(given: object) -> float | None:
    """Return a finite number, given as one or as its text. None for anything else."""
    if isinstance(given, bool) or not isinstance(given, str | int | float):
        return None
    try:
        number = float(given)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def duration_in(given: object) -> float | None:
    """Return the seconds of a number, or of a text in the form of `shown_duration`. None for anything else."""
    if given == "0s":
        return 0.0
    seconds = seconds_in(given) if isinstance(given, str) else None
    return number_in(given) if seconds is None else seconds


def shown_duration(seconds: float) -> str:
    """Return the shortest text that `seconds_in` reads as this duration, to a millisecond."""
    left_ms = round(seconds * 1000)
    text = ""
    for unit in ("d", "h", "m", "s", "ms"):
        count, left_ms = divmod(left_ms, round(UNITS_S[unit] * 1000))
        text += f"{count}{unit}" if count else ""
    return text or "0s"


def size_in(text: str) -> int | None:
    """Return the bytes of a number with KiB, MiB, GiB or TiB, or of a number alone. None for any other text."""
    found = re.fullmatch(r"([0-9]{1,15})(B|KiB|MiB|GiB|TiB|)", text)
    return int(found[1]) * SIZE_UNITS[found[2]] if found else None


def time_in(text: str) -> datetime | None:
    """Return the time of a text: ISO 8601, in UTC without a zone, or a duration before now. None for other texts."""
    if (ago_s := seconds_in(text)) is not None:
        return datetime.now(UTC) - timedelta(seconds=ago_s)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.tzinfo else time.replace(tzinfo=UTC)
