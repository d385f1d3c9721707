"""The table in docs/compared.md equals the counts of tools/compare_programs.py."""

from __future__ import annotations

import re

from tools.compare_programs import PAGE, PEERS, PROGRAMS, ROOT, lines_of, names_of, page

PROGRAM = '''"""A docstring."""

import os  # a comment
from receive import app
from txmsg import (
    Depends,
    Txmsg,
)

# A comment.
TEXT = """one

three"""


def place() -> None:
    """Another
    docstring."""
    print(TEXT)
'''


def test_the_table_matches_the_counts() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert page(text) == text, "run python tools/compare_programs.py"


def test_a_changed_figure_is_found() -> None:
    text = PAGE.read_text(encoding="utf-8")
    wrong = re.sub(r"(\| 1\. Receive \| )\d+", r"\g<1>999", text)
    assert wrong != text
    assert page(wrong) == text


def test_lines_are_counted_without_blank_lines_comments_and_docstrings() -> None:
    assert lines_of(PROGRAM) == 11  # a blank line in a text counts


def test_names_of_sibling_programs_are_not_counted() -> None:
    assert names_of(PROGRAM) == 3


def test_every_program_of_a_peer_is_there_and_linked() -> None:
    text = PAGE.read_text(encoding="utf-8")
    linked = set(re.findall(r"\]\(compared/(\S+\.py)\)", text))
    there = {
        f"{peer}/{name}" for peer in PEERS for name in PROGRAMS if (ROOT / "docs/compared" / peer / name).is_file()
    }
    assert linked == there
    assert len(there) == 5 * len(PEERS) + 1
