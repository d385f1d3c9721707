"""The first line of a docstring is a statement with a verb, or names a thing (CONTRIBUTING.md)."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RIDDLES = re.compile(r"(what|whether|who|whose|whoever|where|when|which|how)\b", re.IGNORECASE)
FOLDERS = ("txmsg", "tests", "benchmarks", "examples", "tools")


def riddles_in(source: str) -> list[str]:
    """Return the first lines of docstrings that begin with such a word."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts = [ast.get_docstring(node) or "" for node in ast.walk(ast.parse(source)) if isinstance(node, documented)]
    return [text.partition("\n")[0] for text in texts if RIDDLES.match(text)]


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_docstring_begins_with_a_question_word(folder: str) -> None:
    files = list((ROOT / folder).rglob("*.py"))
    assert files
    found = {str(file.relative_to(ROOT)): riddles_in(file.read_text()) for file in files}
    assert {file: lines for file, lines in found.items() if lines} == {}


def test_docstrings_of_all_kinds_are_read() -> None:
    source = '''"""What it is."""
class A:
    """Whether."""
    async def b(self):
        """How it ends.

        More.
        """
    def c(self):
        """Return what is there."""
'''
    assert riddles_in(source) == ["What it is.", "Whether.", "How it ends."]
