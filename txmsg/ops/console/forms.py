"""Parses what operators type into fields. Raises MisuseError for invalid input."""

from __future__ import annotations

from dataclasses import fields
from datetime import datetime
from typing import Any

from txmsg.errors import MisuseError, shown
from txmsg.ops.console.page_context import PageContext
from txmsg.runtime.durations import seconds_in, time_in


def names(of: type[Any]) -> list[str]:
    """Return the names of a dataclass's fields."""
    return [field.name for field in fields(of)]


def int_of(look: PageContext, name: str) -> int | None:
    """Return a whole number; None if nothing is typed."""
    number = float_of(look, name)
    if number is not None and not number.is_integer():
        raise MisuseError(look.t("forms.no_whole_number", text=shown(look.values[name])))
    return None if number is None else int(number)


def float_of(look: PageContext, name: str) -> float | None:
    """Return a number; None if nothing is typed."""
    text = look.values.get(name, "").strip()
    try:
        number = float(text) if text else None
    except ValueError as exc:
        raise MisuseError(look.t("forms.no_number", text=shown(text))) from exc
    if number is not None and not abs(number) < 1e15:
        raise MisuseError(look.t("forms.no_number", text=shown(text)))
    return number


def duration_of(look: PageContext, name: str) -> float | None:
    """Return a length of time in seconds; None if nothing is typed."""
    text = look.values.get(name, "").strip()
    if not text:
        return None
    seconds = seconds_in(text)
    if seconds is None:
        raise MisuseError(look.t("groups.no_duration", text=shown(text)))
    return seconds


def as_of_now(text: str) -> str:
    """Return a time for a duration before now, any other text unchanged: the action then is the one that
    was confirmed.
    """
    return text if seconds_in(text) is None or (time := time_in(text)) is None else time.isoformat()


def time_of(look: PageContext, name: str) -> datetime | None:
    """Return a time, given as such or as a duration before now; None if nothing is typed."""
    text = look.values.get(name, "").strip()
    if not text:
        return None
    time = time_in(text)
    if time is None:
        raise MisuseError(look.t("forms.no_time", text=shown(text)))
    return time
