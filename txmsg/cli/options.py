"""Options that commands share, and their types: durations, sizes, times and positions as people write them."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

import click

from txmsg.errors import MisuseError
from txmsg.runtime.durations import UNITS_S, seconds_in, time_in
from txmsg.runtime.start import Start

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

_BYTES: Final = {"": 1, "B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3, "TiB": 1024**4}


def duration(text: str) -> float:
    """Seconds, of numbers and ms, s, m, h or d. A type of click's options."""
    seconds = seconds_in(text)
    if seconds is None:
        raise click.BadParameter(f"{text!r} is not a duration: give a number and s, m, h or d, such as 12h or 7d.")
    return seconds


def shown_duration(seconds: float) -> str:
    """The shortest text that `duration` reads as this one, to a millisecond."""
    left_ms = round(seconds * 1000)
    text = ""
    for unit in ("d", "h", "m", "s", "ms"):
        count, left_ms = divmod(left_ms, round(UNITS_S[unit] * 1000))
        text += f"{count}{unit}" if count else ""
    return text or "0s"


def size(text: str) -> int:
    """Bytes, of a number and KiB, MiB, GiB or TiB, or of a number alone. A type of click's options."""
    found = re.fullmatch(r"(\d{1,15})(B|KiB|MiB|GiB|TiB|)", text)
    if not found:
        raise click.BadParameter(f"{text!r} is not a size: give a number and KiB, MiB, GiB or TiB, such as 100GiB.")
    return int(found[1]) * _BYTES[found[2]]


class _Time(click.ParamType):  # type: ignore[type-arg]
    """A time, or how long ago it was: see `time_in`."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        time = time_in(value)
        if time is None:
            self.fail(f"{value!r} is not a time: give 2026-05-01T10:00:00Z, or 2h for two hours ago.", param, ctx)
        return time


TIME = _Time()


class _Start(click.ParamType):  # type: ignore[type-arg]
    """Where to begin: earliest, latest, an offset, or a time."""

    name = "start"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Start:
        if isinstance(value, Start):
            return value
        try:
            return Start.parse(value)
        except MisuseError as exc:
            self.fail(str(exc), param, ctx)


START = _Start()


# ---- options

json_option: Decorator = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
yes_option: Decorator = click.option("--yes", is_flag=True, help="Do not ask.")
log_level_option: Decorator = click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="Lowest level logged to stderr.",
)
http_listen_option: Decorator = click.option(
    "--http-listen",
    metavar="HOST:PORT",
    default="",
    help="Address of /metrics, /livez and /readyz, on loopback. Port 0 picks a free port.  [default: not served]",
)
storage_option: Decorator = click.option(
    "--storage",
    metavar="URL",
    envvar="TXMSG_STORAGE",
    show_envvar=True,
    required=True,
    help="The Notify database: postgresql://user@host:5432/database.",
)
