"""docs/errors.md names every error there is, and no other."""

from __future__ import annotations

import re

import txmsg
from tests.errors_page import PAGE, rows
from txmsg import errors

CLASSES = {name for name in errors.__all__ if isinstance(getattr(errors, name), type)}
ROOT = "TxmsgError"


def test_every_error_class_has_a_row_and_every_row_a_class() -> None:
    assert {row.kind for row in rows()} - {ROOT} == CLASSES - {ROOT}


def test_the_page_says_what_a_bare_txmsg_error_is() -> None:
    assert f"`{ROOT}`" in PAGE.read_text(encoding="utf-8")


def test_every_row_about_an_error_is_a_promise_that_tests_can_read() -> None:
    heading, promised = "", 0
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("| What happens |"):
            heading = line
        elif line.startswith("| ") and "What the user reads" in heading and "| (log" not in line:
            promised += 1
    assert promised == len(rows()) > 50


def test_every_error_class_stands_in_the_tree_and_can_be_imported_from_txmsg() -> None:
    drawn = set(re.findall(r"^(?:[ |]*\+-- )?(\w+)", errors.__doc__ or "", re.MULTILINE)) - {"Every"}
    assert drawn == CLASSES
    assert set(txmsg.__all__) >= CLASSES


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
