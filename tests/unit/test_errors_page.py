"""docs/errors.md explains every class of errors and quotes only texts of the code."""

from __future__ import annotations

import re

from tests.errors_page import CLASSES, PAGE, Row, pattern_of, rows, rows_of_code
from txmsg import errors

ROOT = "TxmsgError"


def fits(row: Row, said: Row) -> bool:
    """Return True if a row quotes a text of the code. Either may have `…` where the other is exact."""
    if said.kind not in (row.kind, "error"):  # `error` is a parameter: InvalidName or InvalidMessage
        return False
    return bool(row.pattern.fullmatch(said.text) or pattern_of(said.text).fullmatch(row.text))


def test_every_error_class_is_explained() -> None:
    page = PAGE.read_text(encoding="utf-8")
    [table] = re.findall(r"^## What to do, by class\n(.*?)^## ", page, re.DOTALL | re.MULTILINE)
    first_cells = re.findall(r"^\|([^|]*)\|", table, re.MULTILINE)
    explained = [name for cell in first_cells for name in re.findall(r"`(\w+)`", cell)]
    assert sorted(explained) == sorted(CLASSES)


def test_every_text_on_the_page_exists_in_the_code() -> None:
    assert len(rows_of_code()) > 300
    assert [f"{row.kind} {row.text}" for row in rows() if not any(fits(row, said) for said in rows_of_code())] == []


def test_every_text_in_the_code_is_distinguishable() -> None:
    assert [row for row in rows_of_code() if len(re.findall(r"[a-z]{2,}", row.text)) < 2] == []


def test_every_row_about_an_error_can_be_read_by_tests() -> None:
    heading, quoted = "", 0
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("| When |"):
            heading = line
        elif not line.startswith("|"):
            heading = ""
        elif line.startswith("| ") and heading:
            quoted += "(log" not in line
    assert quoted == len(rows()) > 20


def test_every_error_class_is_in_the_tree_and_public() -> None:
    drawn = set(re.findall(r"^(?:[ |]*\+-- )?(\w+)", errors.__doc__ or "", re.MULTILINE)) - {"Every"}
    assert drawn == CLASSES
    assert set(errors.__all__) == CLASSES


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
