"""docs/architecture.md names only files that exist, and its picture has the packages that there are."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_file_of_where_is_exists() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    [_, tables] = page.split("\n## Where is ...?\n")
    places = [line.split("|")[2] for line in tables.splitlines() if line.startswith("| ")]
    named = [name for place in places for name in re.findall(r"`([\w./-]+[./][\w/]*)`", place)]
    assert len(named) > 60
    assert [name for name in named if not (ROOT / "txmsg" / name).exists() and not (ROOT / name).exists()] == []


def test_every_module_named_in_the_text_exists() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    [text, _] = page.split("\n## Where is ...?\n")
    named = set(re.findall(r"`([\w/]+\.py)`", text))
    modules = [path.as_posix() for path in (ROOT / "txmsg").rglob("*.py")]
    assert len(named) > 20
    assert [name for name in named if not any(module.endswith(f"/{name}") for module in modules)] == []


def test_the_picture_of_the_layout_has_every_package() -> None:
    picture = (ROOT / "docs" / "images" / "layout.svg").read_text(encoding="utf-8")
    drawn = re.findall(r'font-weight="bold"[^>]*>(\w+)</text>', picture)
    below = [path for path in (ROOT / "txmsg").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()]
    assert sorted(drawn) == sorted(path.stem for path in below if path.stem != "__init__")
