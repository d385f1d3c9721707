"""Counts lines and imported names of the programs in docs/compared.md and docs/compared/, and writes the page's table.

python tools/compare_programs.py [--check]
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "compared.md"
PROGRAMS = {
    "receive.py": "1. Receive",
    "send.py": "2. Send with the transaction",
    "send_by_package.py": "2. The same, with faststream-outbox",
    "retry.py": "3. Retry and give up by type",
    "dependency.py": "4. Dependency",
    "test_shop.py": "5. Test",
}
PEERS = {"faststream": "FastStream", "procrastinate": "procrastinate", "celery": "Celery"}
OPTIONAL = "send_by_package.py"
"""Not part of the sum: listed beside send.py."""

_BEGIN, _END = "<!-- counted -->\n", "<!-- end of counted -->"
_TABLE = re.compile(f"{_BEGIN}.*?{_END}", re.DOTALL)
_FILE = re.compile(r"^<!-- file: (\S+) -->\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def lines_of(program: str) -> int:
    """Return the number of lines with code: without blank lines, comments and docstrings."""
    tokens = tokenize.tokenize(io.BytesIO(program.encode()).readline)
    found = {line for each in tokens if each.type not in _NO_CODE for line in range(each.start[0], each.end[0] + 1)}
    return len(found - set(_docstring_lines(ast.parse(program))))


def names_of(program: str) -> int:
    """Return the number of names that a program imports, without those of its sibling programs."""
    siblings = {name.removesuffix(".py") for name in PROGRAMS} | {"bank"}
    names = 0
    for node in ast.walk(ast.parse(program)):
        if isinstance(node, ast.Import) or (isinstance(node, ast.ImportFrom) and node.module not in siblings):
            names += len(node.names)
    return names


def page(text: str) -> str:
    """Return the text of the page with the table as counted now."""
    table = "".join(_table(text))
    return _TABLE.sub(lambda _: f"{_BEGIN}{table}{_END}", text)


def _docstring_lines(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        if isinstance(node, kinds) and ast.get_docstring(node, clean=False) is not None:
            yield from range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)


def _table(text: str) -> Iterator[str]:
    columns = [dict(_FILE.findall(text)), *(_files_of(peer) for peer in PEERS)]
    yield f"| Lines / names imported | txmsg | {' | '.join(PEERS.values())} |\n|---|{'---|' * len(columns)}\n"
    for name, title in PROGRAMS.items():
        yield _row(
            title, [f"{lines_of(files[name])} / {names_of(files[name])}" if name in files else "" for files in columns]
        )
    summed = [[files[name] for name in PROGRAMS if name != OPTIONAL] for files in columns]
    yield _row("All five", [f"{sum(map(lines_of, each))} / {sum(map(names_of, each))}" for each in summed])


def _files_of(peer: str) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "compared" / peer).glob("*.py")}


def _row(title: str, cells: list[str]) -> str:
    return f"| {title} | {' | '.join(cells)} |\n"


def main() -> int:
    """Run the tool. Exit status 1 if `--check` finds a difference."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; fail if the table differs")
    check: bool = parser.parse_args().check
    text = PAGE.read_text(encoding="utf-8")
    counted = page(text)
    if check and counted != text:
        print("docs/compared.md is not as counted: run python tools/compare_programs.py", file=sys.stderr)
        return 1
    if not check:
        PAGE.write_text(counted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
