"""Options that commands share, and their types: durations, sizes, times and positions as people write them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import click

from txmsg.administration.fields import ChangeField, settings_of
from txmsg.errors import InvalidMessage, MisuseError
from txmsg.message import parse_id
from txmsg.runtime.durations import duration_in, seconds_in, size_in, time_in
from txmsg.runtime.logs import LOG_FORMATS
from txmsg.wire.start import Start

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def duration(text: str) -> float:
    """Seconds, of numbers and ms, s, m, h or d. A type of click's options."""
    seconds = seconds_in(text)
    if seconds is None:
        raise click.BadParameter(f"{text!r} is not a duration: give a number and s, m, h or d, such as 12h or 7d.")
    return seconds


def size(text: str) -> int:
    """Bytes, of a number and KiB, MiB, GiB or TiB, or of a number alone. A type of click's options."""
    found = size_in(text)
    if found is None:
        raise click.BadParameter(f"{text!r} is not a size: give a number and KiB, MiB, GiB or TiB, such as 100GiB.")
    return found


class _Seconds(click.ParamType):  # type: ignore[type-arg]
    """Seconds from 0 on, as a number or as people write a duration."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = duration_in(value)
        if seconds is None or seconds < 0:
            self.fail(f"{value!r} is not a duration: give a number of seconds, or 30s, 12h, 7d.", param, ctx)
        return seconds


SECONDS = _Seconds()


class _Time(click.ParamType):  # type: ignore[type-arg]
    """A time, or a duration before now: see `time_in`."""

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
    """A start position: earliest, latest, an offset, or a time."""

    name = "start"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Start:
        if isinstance(value, Start):
            return value
        try:
            return Start.parse(value)
        except MisuseError as exc:
            self.fail(str(exc), param, ctx)


START = _Start()


class _Transaction(click.ParamType):  # type: ignore[type-arg]
    """A transaction, by its id or by that of one of its messages."""

    name = "uuid"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> UUID:
        if isinstance(value, UUID):
            return value
        try:
            return parse_id(value)[0]
        except InvalidMessage:
            example = "0197f3a2-8d5e-7c11-b0a4-5f1f6f3f9c01, or that with .0 for its first message"
            self.fail(f"{value!r} is not the id of a transaction or message: give one such as {example}.", param, ctx)


TRANSACTION = _Transaction()


# ---- options


def change_options(change: type[Any], *names: str) -> Decorator:
    """Add an option for each field of a change, or for those named; the command gets them by the fields' names."""
    settings = settings_of(change)

    def decorated(command: Callable[..., Any]) -> Callable[..., Any]:
        for name in reversed(names or list(settings)):
            command = _change_option(settings[name])(command)
        return command

    return decorated


def _change_option(setting: ChangeField) -> Decorator:
    return click.option(
        f"--{setting.option}",
        setting.name,
        type=_type_of(setting),
        metavar="DURATION" if setting.is_duration else None,
        callback=_switched if setting.kind is bool else None,
        help=setting.help,
    )


def _type_of(setting: ChangeField) -> click.ParamType[Any]:
    if setting.is_duration:
        return SECONDS
    if setting.kind is float:
        return click.FloatRange(0)
    if setting.kind is int:
        return click.IntRange(*(setting.bounds or (None, None)))
    return click.Choice(setting.choices or ["on", "off"])


def _switched(_: click.Context, __: click.Parameter, value: str | None) -> bool | None:
    return None if value is None else value == "on"


json_option: Decorator = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
COLUMNS: Final = "txmsg.columns"
WIDE: Final = "txmsg.wide"


def asked(name: str) -> Any:
    """Return the values of `table_options`; None if they are not given, and outside of commands."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.meta.get(name)


def _keep_columns(context: click.Context, _: click.Parameter, text: str | None) -> None:
    if text is not None:
        context.meta[COLUMNS] = [name.strip().lower().replace(" ", "_") for name in text.split(",")]


def _keep_wide(context: click.Context, _: click.Parameter, is_wide: bool) -> None:
    context.meta[WIDE] = is_wide


_columns_option: Decorator = click.option(
    "--columns",
    metavar="NAME,...",
    expose_value=False,
    callback=_keep_columns,
    help="Print only these columns, in this order.",
)
_wide_option: Decorator = click.option(
    "--wide", is_flag=True, expose_value=False, callback=_keep_wide, help="Do not fit the table into the terminal."
)


def table_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --columns and --wide, which hold for `print_rows`."""
    return _columns_option(_wide_option(command))


contains_option: Decorator = click.option(
    "--contains", default="", metavar="TEXT", help="Only if the name contains this text, ignoring case."
)
page_option: Decorator = click.option(
    "--page", default="", metavar="NEXT", help="Next page, as printed by the previous one."
)
yes_option: Decorator = click.option("--yes", is_flag=True, help="Do not ask.")
dry_run_option: Decorator = click.option(
    "--dry-run", is_flag=True, help="Only show what would be deleted, with numbers, and whether it would be refused."
)
log_format_option: Decorator = click.option(
    "--log-format",
    type=click.Choice(LOG_FORMATS),
    envvar="TXMSG_LOG_FORMAT",
    show_envvar=True,
    help="How the log is written to stderr: text, or one JSON object per line.  [default: text]",
)
storage_option: Decorator = click.option(
    "--storage",
    metavar="URL",
    envvar="TXMSG_STORAGE",
    show_envvar=True,
    required=True,
    help="The Notify database: postgresql://user@host:5432/database.",
)
