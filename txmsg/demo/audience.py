"""Who watches a demo."""

from __future__ import annotations

from typing import Protocol


class Audience(Protocol):
    """Is told how the demo goes on. Called from the supervisor's main thread only."""

    def phase(self, title: str, steps: int) -> None:
        """A phase of so many steps begins."""

    def progress(self, steps: int, note: str) -> None:
        """So many steps of the phase are done."""
