"""Durations (30s, 5m) and moments (ISO 8601) as options of commands."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import click

__all__ = ["DURATION", "MOMENT", "seconds_of", "shown_duration"]

_UNITS_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


def seconds_of(text: str) -> float | None:
    """Seconds of a duration such as 250ms, 30s, 5m, 1h, 2d, or 1h30m; None for any other text."""
    if not re.fullmatch(f"({_DURATION.pattern})+", text):
        return None
    return sum(float(number) * _UNITS_S[unit] for number, unit in _DURATION.findall(text))


def shown_duration(seconds: float) -> str:
    """The shortest text that `seconds_of` reads as this duration, to a millisecond."""
    left_ms = round(seconds * 1000)
    text = ""
    for unit in ("d", "h", "m", "s", "ms"):
        count, left_ms = divmod(left_ms, round(_UNITS_S[unit] * 1000))
        text += f"{count}{unit}" if count else ""
    return text or "0s"


class _Duration(click.ParamType):  # type: ignore[type-arg]
    """Seconds, given as 30s or 5m."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        seconds = seconds_of(value)
        if seconds is None:
            self.fail(f"{value!r} is no duration: write it as 30s, 5m, 1h or 2d.", param, ctx)
        return seconds


class _Moment(click.ParamType):  # type: ignore[type-arg]
    """A time with its zone, given as ISO 8601, or as a duration that went by since."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        if (ago_s := seconds_of(value)) is not None and ago_s < 1e11:
            return datetime.now(UTC) - timedelta(seconds=ago_s)
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            self.fail(
                f"{value!r} is no time: write it as 2026-05-01T10:00:00Z, or as 2h for two hours ago.", param, ctx
            )
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


DURATION = _Duration()
MOMENT = _Moment()
