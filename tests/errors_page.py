"""Texts of errors as data: those that the code can raise and those that docs/errors.md explains.

`…` stands for any text in both.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import txmsg
from txmsg import errors

PAGE = Path(__file__).parents[1] / "docs" / "errors.md"
CLASSES = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
_EITHER = "error"  # the name of parameters that take a class, such as InvalidName or InvalidMessage
_CELL_BORDER = re.compile(r"(?<!\\)\|")
_CLASS_AND_TEXT = re.compile(r"`([A-Za-z]+)` (.+)")
_VALUES_IN_A_ROW = re.compile(r"…(\s*…)+")


class Row(NamedTuple):
    """A text of an error: this class with a text that matches the pattern."""

    kind: str
    text: str
    pattern: re.Pattern[str]


def pattern_of(text: str) -> re.Pattern[str]:
    """Return the pattern for a text in which `…` stands for anything."""
    pieces = _VALUES_IN_A_ROW.sub("…", text).split("…")
    return re.compile(".*".join(re.escape(piece) for piece in pieces), re.DOTALL)


@cache
def rows() -> tuple[Row, ...]:
    """Return every row of the page whose second cell begins with the name of an error class."""
    found = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip().replace(r"\|", "|") for cell in _CELL_BORDER.split(line)]
        if len(cells) == 5 and (promised := _CLASS_AND_TEXT.fullmatch(cells[2])):
            found.append(Row(promised[1], promised[2], pattern_of(promised[2])))
    return tuple(found)


@cache
def rows_of_code() -> tuple[Row, ...]:
    """Return every text with which txmsg creates an error."""
    sources = [path for path in Path(txmsg.__file__).parent.rglob("*.py") if "wire/v1" not in path.as_posix()]
    texts = [found for path in sources for found in _texts_of(path)]
    return tuple(Row(kind, text, pattern_of(text)) for kind, text in texts)


def _texts_of(path: Path) -> Iterator[tuple[str, str]]:
    """Yield class and text of every error that a file creates."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
            text = _text_of(node.args[0])
            if node.func.id in CLASSES | {_EITHER} and text.strip("… "):
                yield node.func.id, text


def _text_of(node: ast.expr) -> str:
    """Return the text of a literal or of a concatenation of literals and values."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(map(_text_of, parts))
        case ast.BinOp(left=left, right=right):
            return _text_of(left) + _text_of(right)
        case _:
            return "…"


def is_documented(error: BaseException) -> bool:
    """Return True if the code or the page has this text for the class of the error."""
    kinds = (type(error).__name__, _EITHER)
    return any(row.kind in kinds and row.pattern.fullmatch(str(error)) for row in rows_of_code())
