"""The reference page lists exactly the importable names."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import txmsg.client.fence

_PAGE = (Path(__file__).resolve().parents[2] / "docs" / "reference.md").read_text()
_SECTIONS = dict(re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", _PAGE, re.MULTILINE | re.DOTALL))
_ROW = re.compile(r"^\| `(?P<name>\w+)[^`]*` \| (?P<summary>.*) \|$", re.MULTILINE)


def names_of(module: str) -> set[tuple[str, int]]:
    """Return names with the identity of their objects: two modules may use one name for different things."""
    found = import_module(module)
    return {(name, id(getattr(found, name))) for name in found.__all__ if not name.startswith("__")}


def test_the_page_has_every_public_name_once_and_no_other() -> None:
    assert {"txmsg", "txmsg.client"} <= _SECTIONS.keys()
    said: set[tuple[str, int]] = set()
    for module, text in _SECTIONS.items():
        rows = {row["name"] for row in _ROW.finditer(text)}
        assert rows == {name for name, _ in names_of(module) - said}, module
        said |= names_of(module)


def test_every_row_has_a_summary() -> None:
    assert [row["name"] for row in _ROW.finditer(_PAGE) if not row["summary"].strip()] == []


def test_methods_called_only_by_txmsg_or_a_framework_are_not_listed() -> None:
    methods = set(re.findall(r"^\| `(\w+\.\w+)", _PAGE, re.MULTILINE))
    assert {"Producer.send", "Log.close", "FenceStoreContract.write"} <= methods
    assert methods.isdisjoint({"Log.append", "Tracing.sending", "JsonFormatter.format"})
    assert [method for method in methods if ".test_" in method or "._" in method] == []


@pytest.mark.parametrize("package", [txmsg, txmsg.client.fence], ids=["txmsg", "txmsg.client.fence"])
def test_every_public_name_can_be_imported_from_the_package(package: ModuleType) -> None:
    for name in package.__all__:
        assert name in dir(package)
        assert getattr(package, name) is not None


def test_the_top_package_has_few_names() -> None:
    """Every new user reads them: a further name replaces another or goes into a module, such as txmsg.client.fence."""
    assert len(txmsg.__all__) <= 36
