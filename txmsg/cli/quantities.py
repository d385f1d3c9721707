"""Durations, sizes and moments as people write them on a command line: 90s, 1h30m, 100GiB, 2026-05-01T10:00:00Z."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from txmsg.administration import Position

__all__ = ["MOMENT", "POSITION", "duration", "shown_duration", "size"]

_UNITS_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_PART: Final = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)(ms|s|m|h|d)")
_BYTES: Final = {"": 1, "B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3, "TiB": 1024**4}
_DURATION_S_MAX: Final = 100 * 365 * 86_400


def duration(text: str) -> float:
    """Seconds, of numbers and ms, s, m, h or d. A type of click's options."""
    seconds = _seconds_of(text)
    if seconds is None:
        raise click.BadParameter(f"{text!r} is no length of time: write a number and s, m, h or d, as 12h or 7d.")
    return seconds


def _seconds_of(text: str) -> float | None:
    if not re.fullmatch(f"({_PART.pattern})+", text):
        return None
    seconds = sum(float(number) * _UNITS_S[unit] for number, unit in _PART.findall(text))
    return seconds if 0 < seconds <= _DURATION_S_MAX else None


def shown_duration(seconds: float) -> str:
    """The shortest text that `duration` reads as this one, to a millisecond."""
    left_ms = round(seconds * 1000)
    text = ""
    for unit in ("d", "h", "m", "s", "ms"):
        count, left_ms = divmod(left_ms, round(_UNITS_S[unit] * 1000))
        text += f"{count}{unit}" if count else ""
    return text or "0s"


def size(text: str) -> int:
    """Bytes, of a number and KiB, MiB, GiB or TiB, or of a number alone. A type of click's options."""
    found = re.fullmatch(r"(\d{1,15})(B|KiB|MiB|GiB|TiB|)", text)
    if not found:
        raise click.BadParameter(f"{text!r} is no size: write a number and KiB, MiB, GiB or TiB, as 100GiB.")
    return int(found[1]) * _BYTES[found[2]]


class _Moment(click.ParamType):  # type: ignore[type-arg]
    """A time with its zone, given as ISO 8601 (UTC where it says no zone), or as a duration that went by since."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        if (ago_s := _seconds_of(value)) is not None:
            return datetime.now(UTC) - timedelta(seconds=ago_s)
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is no time: write 2026-05-01T10:00:00Z, or 2h for two hours ago.", param, ctx)
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


MOMENT = _Moment()


class _Position(click.ParamType):  # type: ignore[type-arg]
    """Where to read on: earliest, latest, an offset, or a time."""

    name = "position"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Position:
        if not isinstance(value, str) or value in {"earliest", "latest"}:
            return value  # type: ignore[no-any-return]
        if re.fullmatch(r"\d{1,18}", value):
            return int(value)
        try:
            return MOMENT.convert(value, None, None)
        except click.BadParameter:
            self.fail(
                f"{value!r} is not a position: give earliest, latest, an offset, or a time such as "
                "2026-05-01T10:00:00Z or 2h.",
                param,
                ctx,
            )


POSITION = _Position()
