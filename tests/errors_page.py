"""docs/errors.md as data: which error is promised with which text. `…` in the page stands for any text."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

__all__ = ["PAGE", "Row", "is_documented", "pattern_of", "rows"]

PAGE = Path(__file__).parents[1] / "docs" / "errors.md"
_CELL_BORDER = re.compile(r"(?<!\\)\|")
_CLASS_AND_TEXT = re.compile(r"`([A-Za-z]+)` (.+)")
_VALUES_IN_A_ROW = re.compile(r"…(\s*…)+")


class Row(NamedTuple):
    """One promise of the page: this class with a text that matches the pattern."""

    kind: str
    text: str
    pattern: re.Pattern[str]


def pattern_of(text: str) -> re.Pattern[str]:
    """What a text with `…` in it stands for."""
    pieces = _VALUES_IN_A_ROW.sub("…", text).split("…")
    return re.compile(".*".join(re.escape(piece) for piece in pieces), re.DOTALL)


@cache
def rows() -> tuple[Row, ...]:
    """Every row whose second cell begins with the name of an error class."""
    found = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip().replace(r"\|", "|") for cell in _CELL_BORDER.split(line)]
        if len(cells) == 5 and (promised := _CLASS_AND_TEXT.fullmatch(cells[2])):
            found.append(Row(promised[1], promised[2], pattern_of(promised[2])))
    return tuple(found)


def is_documented(error: BaseException) -> bool:
    """Whether a row promises this class with this text."""
    return any(row.kind == type(error).__name__ and row.pattern.fullmatch(str(error)) for row in rows())
