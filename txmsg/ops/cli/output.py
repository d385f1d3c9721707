"""Prints the output of commands: times, contents of messages, tables, JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import click
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from txmsg.errors import printable
from txmsg.ops.cli.options import COLUMNS, WIDE, asked
from txmsg.wire.headers import unpack_headers

_BODY_SHOWN_BYTES: Final = 2000
_GAP: Final = 2
"""Spaces between columns."""
_TITLES: Final = {"id": "Message", "transaction": "Transaction"}


def seconds(at: datetime | None) -> str | None:
    """Return a time as people read it, in ISO 8601."""
    return None if at is None else at.isoformat(timespec="seconds")


def json_text(values: Mapping[str, object]) -> str:
    """Return the output of a command under --json. Times are ISO 8601 to the microsecond, since programs
    compare them.
    """
    return json.dumps(values, default=_exact)


def _exact(value: object) -> str:
    assert isinstance(value, datetime)
    return value.isoformat()


def content(
    headers: bytes | Mapping[str, str], body: bytes, *, topic: str, is_withheld: bool = False
) -> dict[str, object]:
    """Return the contents of a message, for people and for JSON; of a body only the beginning."""
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
    """Print the names and values of one thing, a line each. Leaves out None."""
    table = Table(show_header=False, box=None)
    for name, value in facts.items():
        if value is not None:
            text = json.dumps(value) if isinstance(value, dict) else _cell(value)
            table.add_row(name, Text(printable(text, lines=True)))
    print_table(table)


def print_rows(rows: Iterable[Mapping[str, object]]) -> None:
    """Print things of one kind as a table. Leaves out columns in which all values are None.

    On a terminal long texts wrap between words. Where not even the words fit side by side, each thing is printed as
    lines of its own, for a time or an id that is cut in two is of no use. `table_options` hold.
    """
    rows = list(rows)
    names = [name for name in (rows[0] if rows else ()) if any(row[name] is not None for row in rows)]
    if (wanted := asked(COLUMNS)) is not None and rows:
        if strange := [name for name in wanted if name not in rows[0]]:
            raise click.UsageError(f"--columns: there is no {strange[0]}: choose from {', '.join(rows[0])}")
        names = wanted
    titles = {name: _TITLES.get(name, name.replace("_", " ").capitalize()) for name in names}
    cells = [[printable("" if row[name] is None else _cell(row[name]), lines=True) for name in names] for row in rows]
    # In a pipe nothing wraps: a text that is broken over lines cannot be found by grep.
    width = None if asked(WIDE) or not sys.stdout.isatty() else _console().width
    widths = _widths([list(titles.values()), *cells], width)
    if widths is None:
        for n, row in enumerate(rows):
            if n:
                click.echo()
            print_facts({name: row[name] for name in names})
        return
    table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False)
    for name, column_width in zip(names, widths, strict=True):
        table.add_column(titles[name], width=column_width)
    for row_cells in cells:
        table.add_row(*map(Text, row_cells))
    print_table(table, width=sum(widths) + _GAP * len(widths))


def _widths(rows: Sequence[Sequence[str]], width: int | None) -> list[int] | None:
    """Return the width of each column: its longest line, or less where it wraps. None: its words do not fit into
    `width`.
    """
    columns = list(zip(*rows, strict=True))
    found = [max(cell_len(line) for cell in column for line in cell.split("\n")) for column in columns]
    least = [max(cell_len(word) for cell in column for word in cell.split() or [""]) for column in columns]
    if width is None:
        return found
    # The widest column that can still shrink gives way first. Each round narrows one column, so the loop ends.
    while (excess := sum(found) + _GAP * (len(found) - 1) - width) > 0:
        widest = max(range(len(found)), key=lambda n: (found[n] > least[n], found[n]))
        if found[widest] == least[widest]:
            return None
        found[widest] = max(least[widest], found[widest] - excess)
    return found


def _cell(value: object) -> str:
    return str(seconds(value) if isinstance(value, datetime) else value)


def print_dry_run(counts: Mapping[str, object], *, as_json: bool) -> None:
    """Print what a command would delete."""
    if as_json:
        click.echo(json_text({**counts, "dry_run": True}))
    else:
        print_facts(counts)
        click.echo("nothing has changed")


def say(text: str, *, err: bool = False) -> None:
    """Print a line that may contain text from outside."""
    click.echo(printable(text, lines=True), err=err)


def print_address(address: str, *, as_json: bool) -> None:
    """Print the address on which a server listens."""
    click.echo(json.dumps({"listening": address}) if as_json else f"listening on {address}")


def first_line(text: str | None) -> str:
    """Return an error's first line for a row of a table, without the place. `show` commands have the rest."""
    return (text or "").partition("\n")[0]


def print_table(table: Table, *, width: int | None = None) -> None:
    """Print a table as wide as the terminal, or so wide; unfolded in a pipe, so that its text can be searched."""
    _console(width).print(table)


def _console(width: int | None = None) -> Console:
    class Printable(Console):
        """A console that escapes unprintable text: keys, names and errors come from others, and may control
        a terminal.
        """

        def render_str(self, text: str, **options: Any) -> Text:
            return super().render_str(printable(text, lines=True), **options)

    # Keys, names and errors are others' words: "[/b]" in them is not markup, and ":x:" not an emoji.
    return Printable(
        highlight=False,
        markup=False,
        emoji=False,
        width=width or (None if sys.stdout.isatty() else 250),
        height=width and 25,
    )
