"""The reader of the log that is in a directory now. One that was emptied, and made anew, is another log."""

from __future__ import annotations

from pathlib import Path

from txmsg.metaq.store.reader import LogReader

__all__ = ["CurrentReader"]


class CurrentReader:
    """A `LogReader`, or another one when another log has taken the place. A look costs a `stat`."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._known: tuple[tuple[int, int], LogReader] | None = None

    def get(self) -> LogReader | None:
        """None while there is no log."""
        try:
            found = (self._root / "log.json").stat()
        except FileNotFoundError:
            self._known = None
            return None
        mark = (found.st_ino, found.st_mtime_ns)  # not the inode alone: the next file may get it again
        known = self._known
        if known is None or known[0] != mark:
            known = self._known = (mark, LogReader(self._root))
        return known[1]
