"""Hypothesis draws the same examples in every run."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st


def drawn() -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []

    @settings(derandomize=True, max_examples=200)
    @given(st.integers(), st.text())
    def draw(number: int, text: str) -> None:
        found.append((number, text))

    draw()
    return found


def test_examples_do_not_depend_on_earlier_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> None:
    """Order and processes of tests vary between runs, and tests import modules with constants that it could draw."""
    before = drawn()
    (tmp_path / "full_of_constants.py").write_text(f"A = {[*range(70_000, 70_300)]}\nB = {[*map(str, range(300))]}\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("full_of_constants")
    if pytestconfig.getoption("--seed") != "random":
        assert drawn() == before
