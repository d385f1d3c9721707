"""What commands print: times, contents of messages, tables, JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from txmsg.errors import printable
from txmsg.message import datetime_of_us
from txmsg.wire.headers import unpack_headers

_BODY_SHOWN_BYTES = 2000


def moment(us: int) -> str | None:
    """Microseconds since 1970 as ISO 8601 in UTC; None for 0."""
    return datetime_of_us(us).isoformat(timespec="seconds") if us else None


def json_text(values: Mapping[str, object]) -> str:
    """What a command prints under --json. Times as ISO 8601."""
    return json.dumps(values, default=_iso)


def _iso(value: object) -> str:
    assert isinstance(value, datetime)
    return value.isoformat(timespec="seconds")


def content(
    headers: bytes | Mapping[str, str], body: bytes, *, topic: str, is_withheld: bool = False
) -> dict[str, object]:
    """What a message holds, for people and for JSON. The beginning of a body is enough to recognise it."""
    if is_withheld:
        needs = f"headers and body need `read topic:{topic}`: `txmsg acl allow` gives it"
        return {"headers": None, "body": None, "withheld": needs}
    if isinstance(headers, bytes):
        headers = unpack_headers(headers)
    return {
        "headers": dict(headers),
        "body_size_bytes": len(body),
        # Bytes that are not text show as \\xNN.
        "body": body[:_BODY_SHOWN_BYTES].decode(errors="backslashreplace"),
        "withheld": None,
    }


def print_facts(facts: Mapping[str, object]) -> None:
    """Prints the names and values of one thing, a line each. Leaves out None."""
    table = Table(show_header=False, box=None)
    for name, value in facts.items():
        if value is not None:
            text = json.dumps(value) if isinstance(value, dict) else _cell(value)
            table.add_row(name, Text(printable(text, lines=True)))
    print_table(table)


_IDS: Final = {"id": ("Message", 38), "transaction": ("Transaction", 36)}
"""Columns of ids, which cannot be copied if they are cut short."""


def print_rows(rows: Iterable[Mapping[str, object]]) -> None:
    """Prints things of one kind as a table. Leaves out columns in which all values are None."""
    rows = list(rows)
    names = [name for name in (rows[0] if rows else ()) if any(row[name] is not None for row in rows)]
    table = Table(box=None)
    for name in names:
        if name in _IDS:
            title, width = _IDS[name]
            table.add_column(title, no_wrap=True, min_width=width)
        else:
            table.add_column(name.replace("_", " ").capitalize())
    for row in rows:
        table.add_row(*("" if row[name] is None else _cell(row[name]) for name in names))
    print_table(table)


def _cell(value: object) -> str:
    return _iso(value) if isinstance(value, datetime) else str(value)


def say(text: str, *, err: bool = False) -> None:
    """Prints a line that may contain text from outside."""
    click.echo(printable(text, lines=True), err=err)


def print_address(address: str, *, as_json: bool) -> None:
    """Prints where a server listens."""
    click.echo(json.dumps({"listening": address}) if as_json else f"listening on {address}")


def first_line(text: str | None) -> str:
    """Of an error, for a row of a table: what was raised, without where. `show` commands have the rest."""
    return (text or "").partition("\n")[0]


def print_table(table: Table) -> None:
    """As wide as the terminal; unfolded in a pipe, so that its text can be searched."""
    _console().print(table)


def _console() -> Console:
    class Printable(Console):
        """Shows no text as it is: keys, names and errors are others' words, and may steer a terminal."""

        def render_str(self, text: str, **options: Any) -> Text:
            return super().render_str(printable(text, lines=True), **options)

    # Keys, names and errors are others' words: "[/b]" in them is not markup, and ":x:" not an emoji.
    return Printable(highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else 250)
