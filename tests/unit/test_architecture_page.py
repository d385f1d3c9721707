"""docs/architecture.md names only existing files, and its table and picture have all packages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools import layout

ROOT = Path(__file__).parents[2]


def test_every_file_named_in_the_where_is_table_exists() -> None:
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


def rooms() -> list[str]:
    """The packages and modules below txmsg/."""
    below = [path for path in (ROOT / "txmsg").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()]
    return sorted(path.stem for path in below if path.stem != "__init__")


def test_picture_has_every_package() -> None:
    picture = (ROOT / layout.PICTURE).read_text(encoding="utf-8")
    assert sorted(re.findall(r'font-weight="bold"[^>]*>(\w+)</text>', picture)) == rooms()


def test_table_has_every_package() -> None:
    page = (ROOT / layout.PAGE).read_text(encoding="utf-8")
    table = page.partition(layout.TABLE_BEGIN)[2].partition(layout.TABLE_END)[0]
    assert sorted(re.findall(r"^\| \d+ \| `(\w+)(?:/|\.py)` \|", table, re.MULTILINE)) == rooms()


def tree(directory: Path, page: str, docstring: str) -> Path:
    """A checkout of one package, `shop`, of 123 lines."""
    for name in ("docs", "txmsg/shop"):
        (directory / name).mkdir(parents=True)
    (directory / layout.PAGE).write_text(page, encoding="utf-8")
    (directory / "pyproject.toml").write_text(
        '[[tool.importlinter.contracts]]\ncontainers = ["txmsg"]\nlayers = ["shop"]\n', encoding="utf-8"
    )
    (directory / "txmsg/shop/__init__.py").write_text(f'"""{docstring}"""\n', encoding="utf-8")
    (directory / "txmsg/shop/till.py").write_text("PRICE = 1\n" * 122, encoding="utf-8")
    return directory


def test_table_is_replaced_and_the_rest_of_the_page_kept(tmp_path: Path) -> None:
    page = f"before\n{layout.TABLE_BEGIN}\nold\n{layout.TABLE_END}\nafter\n"
    made = layout.layout_files(tree(tmp_path, page, "Sells what\nthere is. Knows no bank."))[layout.PAGE]
    assert made.startswith("before\n")
    assert made.endswith("\nafter\n")
    assert "old" not in made
    assert "| 1 | `shop/` | Sells what there is. |  | 2 | 120 | 120 |" in made


def test_page_without_the_lines_around_its_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"architecture\.md needs the lines"):
        layout.layout_files(tree(tmp_path, f"{layout.TABLE_BEGIN}\n", "Sells."))


def test_package_docstring_without_a_first_sentence_is_refused(tmp_path: Path) -> None:
    page = f"{layout.TABLE_BEGIN}\n{layout.TABLE_END}\n"
    with pytest.raises(ValueError, match=r"docstring of txmsg\.shop"):
        layout.layout_files(tree(tmp_path, page, "shop"))
