"""Generates the synchronous module of an asynchronous one: `flow_async.py` gives `flow.py`.

A source is written so that the two differ in words only. What differs in more, such as how a step is run in a session
of either kind, is behind functions that exist in both kinds, written by hand: txmsg/checker/fence/engines.py.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).resolve().parent.parent
_SOURCES: Final = (
    "txmsg/checker/connections/drivers_async.py",
    "txmsg/checker/fence/fence_async.py",
    *(f"txmsg/client/connections/{name}_async.py" for name in ("rows", "transaction")),
    *(f"txmsg/client/flows/{name}_async.py" for name in ("halves", "flow", "late", "joined")),
    *(f"txmsg/client/receiving/{name}_async.py" for name in ("inbox_handler", "sending_handler")),
    "txmsg/client/outbox/flow_async.py",
)
_WORDS: Final = (
    (r"from sqlalchemy\.ext\.asyncio import AsyncSession\b", "from sqlalchemy.orm import Session"),
    (r"\basync (?=def|with|for)", ""),
    (r"\bawait ", ""),
    (r"\bAwaitable, ", ""),  # of an import
    (r"\bAbstractAsync(?=[A-Z])", "Abstract"),
    (r"\bAwaitable\[(\w+(\[\w+\])?)\]", r"\1"),
    (r"\bAsync(?=[A-Z])", ""),
    (r"\b__a(?=(enter|exit)__)", "__"),
    (r"(?<=\w)_async\b", ""),
)
_LEFT: Final = re.compile(r"async|await", re.IGNORECASE)


def sync_modules() -> dict[Path, str]:
    """Return the text of each generated module, by its path below the root."""
    return {Path(source.replace("_async.py", ".py")): _sync_of(Path(source)) for source in _SOURCES}


def _sync_of(source: Path) -> str:
    text = (_ROOT / source).read_text()
    for pattern, replacement in _WORDS:
        text = re.sub(pattern, replacement, text)
    if left := _LEFT.search(text):
        line = text.count("\n", 0, left.start()) + 1
        raise ValueError(f"{source}:{line}: {left[0]!r} is left in what is to be synchronous: write it differently")
    text = f"# Generated from {source.name} by `make generate`: change that one.\n\n{text}"
    text = _ruff("check", "--fix-only", "--select=F401,I", '--config=lint.isort.known-first-party=["txmsg"]', text=text)
    return _ruff("format", text=text)


def _ruff(*arguments: str, text: str) -> str:
    command = [sys.executable, "-m", "ruff", *arguments, "--quiet", "-"]
    return subprocess.run(command, cwd=_ROOT, input=text, stdout=subprocess.PIPE, text=True, check=True).stdout
