"""Numbers, sizes and times as text, in both languages."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

_SHORT: Final = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k"))
_SIZES: Final = ((1024**4, "TiB"), (1024**3, "GiB"), (1024**2, "MiB"), (1024, "KiB"))
_UNITS: Final[Mapping[str, tuple[str, str, str, str]]] = {
    "en": (" s", " min", " h", " d"),
    "zh": (" 秒", " 分", " 小时", " 天"),
}
_AGO: Final = {"en": "{} ago", "zh": "{}前"}


def number(value: float | None) -> str:
    """Return a whole number with separators, a small fraction with one digit, or a dash for None."""
    if value is None:
        return "–"
    if 0 < abs(value) < 10 and value != int(value):
        return f"{value:.1f}"
    return f"{value:,.0f}"


def short(value: float | None) -> str:
    """Return a number in at most six characters: 12.3k."""
    if value is None:
        return "–"
    for unit, sign in _SHORT:
        if abs(value) >= unit:
            scaled = value / (1000 if sign == "k" else unit)
            return f"{scaled:.1f}{sign}" if scaled < 100 else f"{scaled:.0f}{sign}"
    return number(value)


def size(value: float | None) -> str:
    """Return a size in bytes as text."""
    if value is None:
        return "–"
    for unit, sign in _SIZES:
        if value >= unit:
            return f"{value / unit:.1f} {sign}"
    return f"{value:.0f} B"


def percent(value: float | None) -> str:
    """Return a share in percent."""
    return "–" if value is None else f"{100 * value:.0f} %"


def duration(seconds: float | None, language: str = "en") -> str:
    """Return a duration in its two greatest units at most."""
    if seconds is None:
        return "–"
    second, minute, hour, day = _UNITS[language]
    whole = int(seconds)
    if whole < 60:
        return f"{seconds:.1f}{second}" if 0 < seconds < 10 and seconds != whole else f"{whole}{second}"
    if whole < 3600:
        return f"{whole // 60}{minute} {whole % 60}{second}" if whole < 600 else f"{whole // 60}{minute}"
    if whole < 86_400:
        return f"{whole // 3600}{hour} {whole % 3600 // 60}{minute}"
    return f"{whole // 86_400}{day} {whole % 86_400 // 3600}{hour}"


def moment(at: datetime | None) -> str:
    """Return a time in UTC, to the second."""
    return "–" if at is None else at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def ago(at: datetime | None, language: str = "en") -> str:
    """Return the duration since a time."""
    if at is None:
        return "–"
    seconds = max(0.0, (datetime.now(UTC) - at).total_seconds())
    return _AGO[language].format(duration(int(seconds), language))
