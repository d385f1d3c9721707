"""README.zh.md corresponds to README.md: the same commands, code, names and links."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TRANSLATIONS = {"README.md", "README.zh.md"}  # each links to the other


@pytest.fixture
def pages() -> list[str]:
    """The two pages."""
    return [(ROOT / name).read_text(encoding="utf-8") for name in sorted(TRANSLATIONS)]


def blocks(page: str) -> list[str]:
    """Return commands, output and code, as printed."""
    return re.findall(r"^```.*?^```$", page, re.DOTALL | re.MULTILINE)


def prose(page: str) -> str:
    """Return the page without them."""
    return re.sub(r"^```.*?^```$", "", page, flags=re.DOTALL | re.MULTILINE)


def test_commands_and_code_are_the_same(pages: list[str]) -> None:
    english, chinese = map(blocks, pages)
    assert len(english) > 5
    assert chinese == english


def test_commands_and_names_within_sentences_are_the_same(pages: list[str]) -> None:
    english, chinese = (sorted(re.findall(r"`[^`\n]+`", prose(page))) for page in pages)
    assert len(english) > 10
    assert chinese == english


def test_links_and_pictures_are_the_same(pages: list[str]) -> None:
    english, chinese = (re.findall(r"\]\(([^)]+)\)", prose(page)) for page in pages)
    assert len(english) > 10
    assert [to for to in chinese if to not in TRANSLATIONS] == [to for to in english if to not in TRANSLATIONS]


def test_the_number_of_headings_is_the_same(pages: list[str]) -> None:
    english, chinese = (re.findall(r"^#+ ", prose(page), re.MULTILINE) for page in pages)
    assert chinese == english
