"""Detection of changed files of a program, for `txmsg worker --reload`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_LEFT_OUT: Final = frozenset({"__pycache__", "node_modules", "site-packages", "venv"})


class Changes:
    """Watches the modules below a directory; hidden and installed ones are left out."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._known = self._modification_times()

    def since_last(self) -> str | None:
        """Return a file that was changed, created or deleted since the last call; None if there is none."""
        found, before = self._modification_times(), self._known
        self._known = found
        changed = {path for path, _ in found.items() ^ before.items()}
        return min(changed) if changed else None

    def _modification_times(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for directory, below, names in os.walk(self._root):
            below[:] = [name for name in below if name not in _LEFT_OUT and not name.startswith(".")]
            for name in names:
                if name.endswith(".py"):
                    path = Path(directory, name)
                    try:
                        found[str(path.relative_to(self._root))] = path.stat().st_mtime_ns
                    except FileNotFoundError:  # deleted meanwhile
                        continue
        return found
