"""The modules of the tree have no import cycle, not even for types.

An import counts that stands outside functions: at the level of the module, in a class, in a branch, under
TYPE_CHECKING. One in a function does not count: it runs when both modules are there, and is how a heavy module is
loaded late. Nor does it count that `import a.b` also runs a/__init__.py, which the statement does not name.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

_ROOT: Final = Path(__file__).parents[2]
_TREES: Final = ("txmsg", "tools", "benchmarks", "examples", "tests")


def circles(root: Path, trees: Collection[str]) -> list[list[str]]:
    """Return the sets of modules in import cycles, by name, in the trees below `root`."""
    files = {_name_of(file.relative_to(root)): file for tree in trees for file in sorted((root / tree).rglob("*.py"))}
    return _circles_of({name: _imported(name, file, files) for name, file in files.items()})


def _name_of(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def _imported(name: str, file: Path, known: Collection[str]) -> set[str]:
    """Return the modules among `known` that a module imports in statements that count."""
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    found: set[str] = set()
    for statement in _outside_functions(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(statement, ast.Import):
            found |= {alias.name for alias in statement.names}
        elif isinstance(statement, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - statement.level + 1] if statement.level else []
            source = ".".join([*above, *([statement.module] if statement.module else [])])
            names = [f"{source}.{alias.name}" for alias in statement.names]
            found |= {name if name in known else source for name in names}  # a module of a package, or what is in it
    return found.intersection(known) - {name}


def _outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
            yield from _outside_functions(child)


def _circles_of(arrows: Mapping[str, Collection[str]]) -> list[list[str]]:
    """Return the strongly connected components of more than one module."""
    reached = {name: _reached(name, arrows) for name in arrows}
    found = {frozenset(other for other in reached[name] if name in reached[other]) for name in arrows}
    return sorted(sorted(circle) for circle in found if len(circle) > 1)


def _reached(name: str, arrows: Mapping[str, Collection[str]]) -> set[str]:
    reached, left = set[str](), [name]
    while left:
        for other in arrows[left.pop()]:
            if other not in reached:
                reached.add(other)
                left.append(other)
    return reached


def test_modules_have_no_import_cycle() -> None:
    assert circles(_ROOT, _TREES) == []


_HEAD: Final = "from __future__ import annotations\n"
_FOR_TYPES: Final = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    "


@pytest.mark.parametrize(
    ("modules", "found"),
    [
        ({"a": "import tree.b", "b": "from tree import a"}, ["a", "b"]),
        ({"a": "import tree.b as b", "b": f"{_FOR_TYPES}from tree.a import A"}, ["a", "b"]),
        ({"a": "from .b import B", "b": "from . import c", "c": "from .a import A"}, ["a", "b", "c"]),
        ({"a": "try:\n    import tree.b\nfinally:\n    B = 1", "b": "import tree.a"}, ["a", "b"]),
        ({"a": "class A:\n    from tree.b import B", "b": "import tree.a"}, ["a", "b"]),
        ({"p/__init__": "from tree.p.q import Q", "p/q": "from tree.p import P"}, ["p", "p.q"]),
        ({"p/__init__": "from .q import Q", "p/q": "from . import P"}, ["p", "p.q"]),
        ({"a": "from tree.p import q, P", "p/__init__": "import tree.a", "p/q": ""}, ["a", "p"]),
        # No circles:
        ({"a": "import tree.b", "b": "def f():\n    import tree.a"}, []),
        ({"a": "import tree.b, tree.c", "b": "import tree.c", "c": "import os"}, []),
        ({"p/__init__": "from tree.p.q import Q", "p/q": "import tree.p.r", "p/r": ""}, []),
    ],
)
def test_a_planted_import_cycle_is_found(modules: Mapping[str, str], found: list[str], tmp_path: Path) -> None:
    for name, text in modules.items():
        file = tmp_path / "tree" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{_HEAD}{text}\n", encoding="utf-8")
    expected = [[f"tree.{name}" for name in found]] if found else []
    assert circles(tmp_path, ["tree"]) == expected


def test_each_tree_has_modules() -> None:
    for tree in _TREES:
        assert any((_ROOT / tree).rglob("*.py")), tree
