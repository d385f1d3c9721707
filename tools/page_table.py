"""The tables of generated pages, in Markdown."""

from __future__ import annotations

from collections.abc import Iterable


def table(columns: str, rows: Iterable[Iterable[str]]) -> str:
    """Return a table with its empty line before it. columns: separated by ` | `. A cell with `|` has it escaped."""
    head = f"| {columns} |"
    lines = ("", head, f"|{'---|' * (head.count('|') - 1)}", *(f"| {' | '.join(row)} |" for row in rows))
    return "".join(f"{line}\n" for line in lines)
