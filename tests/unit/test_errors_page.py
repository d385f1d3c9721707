"""docs/errors.md names every error there is, and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import txmsg
from tests.errors_page import PAGE, Row, pattern_of, rows
from txmsg import errors

CLASSES = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
ROOT = "TxmsgError"
SOURCES = [path for path in Path(txmsg.__file__).parent.rglob("*.py") if "wire/v1" not in path.as_posix()]


def texts_of(path: Path) -> Iterator[tuple[str, str]]:
    """The class and the text of every error that a file makes; `…` stands for its values."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
            text = text_of(node.args[0])
            if node.func.id in CLASSES | {"error"} and text.strip("…"):
                yield node.func.id, text


def text_of(node: ast.expr) -> str:
    """A literal, or one put together of literals and values."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(map(text_of, parts))
        case ast.BinOp(left=left, right=right):
            return text_of(left) + text_of(right)
        case _:
            return "…"


def fits(row: Row, kind: str, text: str) -> bool:
    """Whether a row promises a text of the code. Either may say `…` where the other is exact."""
    if kind not in (row.kind, "error"):  # `error` is a parameter: InvalidName or InvalidMessage
        return False
    return bool(row.pattern.fullmatch(text) or pattern_of(text).fullmatch(row.text))


def test_every_error_class_has_a_row_and_every_row_a_class() -> None:
    assert {row.kind for row in rows()} - {ROOT} == CLASSES - {ROOT}


def test_every_text_in_the_code_is_promised_by_a_row_and_every_promise_is_kept_by_a_text() -> None:
    found = [(kind, text) for path in SOURCES for kind, text in texts_of(path)]
    assert len(found) > 100
    unsaid = [f"{kind}: {text}" for kind, text in found if not any(fits(row, kind, text) for row in rows())]
    unkept = [f"{row.kind} {row.text}" for row in rows() if not any(fits(row, kind, text) for kind, text in found)]
    assert (unsaid, unkept) == ([], [])


def test_the_page_says_what_a_bare_txmsg_error_is() -> None:
    assert f"`{ROOT}`" in PAGE.read_text(encoding="utf-8")


def test_every_row_about_an_error_is_a_promise_that_tests_can_read() -> None:
    heading, promised = "", 0
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("| What happens |"):
            heading = line
        elif line.startswith("| ") and "What the user reads" in heading:
            promised += "(log, as an error)" not in line
    assert promised == len(rows()) > 50


def test_every_error_class_stands_in_the_tree_and_can_be_imported_from_txmsg() -> None:
    drawn = set(re.findall(r"^(?:[ |]*\+-- )?(\w+)", errors.__doc__ or "", re.MULTILINE)) - {"Every"}
    assert drawn == CLASSES
    assert set(txmsg.__all__) >= CLASSES
    assert set(errors.__all__) >= CLASSES


def test_the_tree_is_drawn_as_the_classes_inherit() -> None:
    parents: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        if branch := re.match(r"([ |]*)\+-- (\w+)", line):
            depth, name = len(branch[1]), branch[2]
            while parents and parents[-1][0] >= depth:
                parents.pop()
            parent = parents[-1][1] if parents else ROOT
            assert getattr(errors, name).__base__ is getattr(errors, parent), name
            parents.append((depth, name))
