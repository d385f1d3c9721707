"""Lists of modules in docstrings of packages name all modules and no others."""

from __future__ import annotations

import ast
import re
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "txmsg"
_ROW = re.compile(r"^ *(\w+(?:, \w+)*)/? {2,}\S", re.MULTILINE)


def modules_of(package: Path) -> set[str]:
    """Return the modules and packages directly in a package."""
    below = {path.parent.name for path in package.glob("*/__init__.py")}
    return below | {path.stem for path in package.glob("*.py") if path.stem != "__init__"}


def lists_of(package: Path) -> list[str]:
    """Return the paragraphs of its docstring that begin with a module's name and a phrase."""
    docstring = ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8"))) or ""
    paragraphs = docstring.split("\n\n")
    return [each for each in paragraphs if (row := _ROW.match(each)) and row[1].split(", ")[0] in modules_of(package)]


def unlisted(package: Path) -> list[str]:
    """Return modules that its lists do not name. A sync twin is named by its source, `NAME_async`."""
    named = set(re.findall(r"\w+", "\n".join(lists_of(package))))
    return sorted(name for name in modules_of(package) if not {name, f"{name}_async"} & named)


def gone(package: Path) -> list[str]:
    """Return names at the beginning of rows that are not modules."""
    rows = [row for each in lists_of(package) for row in _ROW.findall(each)]
    return sorted({name for row in rows for name in row.split(", ")} - modules_of(package))


PACKAGES = [path.parent for path in sorted(PACKAGE.rglob("__init__.py")) if lists_of(path.parent)]


def test_lists_of_modules_are_complete() -> None:
    assert len(PACKAGES) > 30
    assert {package: unlisted(package) for package in PACKAGES if unlisted(package)} == {}
    assert {package: gone(package) for package in PACKAGES if gone(package)} == {}


def test_a_missing_or_removed_module_is_found(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text('"""Parts.\n\nreader   reads\nwriter   writes\n"""\n', encoding="utf-8")
    for name in ("reader.py", "twin.py"):
        (tmp_path / name).touch()
    assert unlisted(tmp_path) == ["twin"]
    assert gone(tmp_path) == ["writer"]
