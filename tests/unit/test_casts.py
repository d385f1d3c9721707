"""No test casts an object to a txmsg class, which would hide missing methods from mypy. It derives from the class."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent.parent


def casts_to_ours(source: str) -> Iterator[str]:
    """Return the calls of `cast` whose class is imported from txmsg."""
    tree = ast.parse(source)
    ours = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "txmsg"
        for alias in node.names
    }
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="cast"), args=[ast.Name(id=of) | ast.Constant(value=of), _]) if of in ours:
                yield f"line {node.lineno}: {ast.unparse(node)}"


def test_tests_do_not_cast_to_txmsg_classes() -> None:
    found = {str(path.relative_to(TESTS)): list(casts_to_ours(path.read_text())) for path in TESTS.rglob("*.py")}
    assert {path: casts for path, casts in found.items() if casts} == {}


def test_a_cast_to_a_txmsg_class_is_found() -> None:
    source = "from txmsg.a import B as C\nfrom x import D\ncast(C, 1), cast('C', 2), cast(D, 3), cast(Any, 4)"
    assert list(casts_to_ours(source)) == ["line 3: cast(C, 1)", "line 3: cast('C', 2)"]
