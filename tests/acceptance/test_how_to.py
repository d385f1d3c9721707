"""The code of the how-to pages runs as printed: each page is a project with its own tests.

The recipes of the cookbook are one project together: to start pytest and a broker takes longer than a recipe.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.acceptance.user_project import ROOT, UserProject, files_of
from tests.conftest import PostgresServer

pytestmark = pytest.mark.timeout(300)  # a run of pytest within a test of pytest

PAGES = {page.stem: page for page in sorted((ROOT / "docs" / "how-to").glob("*.md")) if files_of(page)}
del PAGES["django"]  # has a runner of tests of its own: tests/contrib
RECIPES = {page.stem: files_of(page) for page in sorted((ROOT / "docs" / "cookbook").glob("*.md"))}
_NEEDS_JAVA = {"spark"}
_TEST = re.compile(r"^(?:async )?def test_", re.MULTILINE)


def test_the_pages_for_applications_show_whole_programs() -> None:
    assert {"testing", "fastapi", "flask", "idempotent-consumers"} <= PAGES.keys()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long) if name in _NEEDS_JAVA else name for name in PAGES]
)
def test_the_code_of_a_page_runs_as_printed(name: str, postgres: PostgresServer, tmp_path: Path) -> None:
    _run(files_of(PAGES[name]), postgres, tmp_path)


def test_the_recipes_of_the_cookbook_run_as_printed(postgres: PostgresServer, tmp_path: Path) -> None:
    files: dict[str, str] = {}
    for name, shown in RECIPES.items():
        assert any(_TEST.search(text) for text in shown.values()), f"{name} has no test"
        assert not files.keys() & shown.keys(), f"{name} has a file of another recipe"
        files |= shown
    _run(files, postgres, tmp_path)


def _run(files: Mapping[str, str], postgres: PostgresServer, tmp_path: Path) -> None:
    options = ("--txmsg-storage", postgres.url("postgres"), "--txmsg-timeout-s", "60")
    outcome = UserProject(tmp_path, files).pytest("-q", *options)
    assert outcome.status == 0, outcome.output
    assert outcome.counts.keys() == {"passed"}
    assert outcome.counts["passed"] >= sum(len(_TEST.findall(text)) for text in files.values()) >= 2
