"""Which frames may hold a key: by the index of each finished file, and in memory for the open one or where none is."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np

from txmsg.errors import CorruptLog, StorageError
from txmsg.metaq.store.commit_log import CommitLogReader, files_of
from txmsg.metaq.store.keys import KEYS_AT_ONCE, BadKeys, Keys, KeysFile, index_keys, key_hash, keys_file, write_keys

__all__ = ["KeyFinder", "KeyIndexer"]

_LOGGER = logging.getLogger(__name__)
_IN_MEMORY_MAX = 4


class KeyFinder:
    """Looks up keys, in any process. Remembers what it has indexed in memory of the open file."""

    def __init__(self, root: Path, log_id: int, log: CommitLogReader) -> None:
        self._root = root
        self._log_id = log_id
        self._log = log
        self._files: dict[int, KeysFile] = {}
        self._in_memory: OrderedDict[int, list[Keys]] = OrderedDict()

    def positions(self, topic: str, key: str) -> Iterator[int]:
        """Where frames stand that may have a message with this key, oldest first."""
        sought = key_hash(topic, key)
        firsts = self._log.files()
        for gone in [first for first in (*self._files, *self._in_memory) if first not in firsts]:
            self._files.pop(gone, None)
            self._in_memory.pop(gone, None)
        for first, end in pairwise([*firsts, self._log.end_after(firsts)]):
            places = self._in_file(first, end, sought) if first != firsts[-1] else None
            if places is None:
                try:
                    places = self._in_parts(first, end, sought)
                except CorruptLog:
                    if first in self._log.files():  # else retention has deleted it meanwhile
                        raise
                    continue
            yield from (first + 8 * place for place in places)

    def _in_file(self, first: int, end: int, sought: int) -> list[int] | None:
        """By the index of a finished file; None if there is none that can be read."""
        try:
            if first not in self._files:
                self._files[first] = KeysFile(self._root, self._log_id, first, end)
            places = self._files[first].places(sought)
        except BadKeys as exc:
            self._files.pop(first, None)
            if keys_file(self._root, first).exists():
                _LOGGER.warning("%s is not used: %s", keys_file(self._root, first), exc)
            return None
        self._in_memory.pop(first, None)
        return places

    def _in_parts(self, first: int, end: int, sought: int) -> list[int]:
        """By an index in memory, made as far as the file goes now."""
        parts = self._in_memory.setdefault(first, [])
        self._in_memory.move_to_end(first)
        if len(self._in_memory) > _IN_MEMORY_MAX:
            self._in_memory.popitem(last=False)
        start = parts[-1].end if parts else first
        if start < end or not parts:
            for each in index_keys(self._log, first, start, end):
                small = parts.pop() if parts and len(parts[-1].hashes) < KEYS_AT_ONCE else None
                parts.append(small.with_next(each) if small else each)
        found = np.concatenate([each.places[each.hashes == np.uint64(sought)] for each in parts])
        return [int(each) for each in np.unique(found)]


class KeyIndexer:
    """Writes the indexes that finished files lack, on a thread of its own. What it cannot write is tried again."""

    def __init__(self, root: Path, log_id: int) -> None:
        self._root = root
        self._log_id = log_id
        self._log = CommitLogReader(root / "commitlog")
        self._files: set[int] = set()  # whose index is known to be in order
        self._one_at_a_time = threading.Lock()
        self._stopped = False
        self._due = threading.Event()
        self._thread = threading.Thread(target=self._run, name="txmsg-metaq-keys", daemon=True)

    def start(self) -> None:
        """Begins to look."""
        self._due.set()
        self._thread.start()

    def wake(self) -> None:
        """Has it look for finished files."""
        self._due.set()

    def stop(self) -> None:
        """Ends it, within a part of a file; what is not indexed is when the log is opened next."""
        self._stopped = True
        self._due.set()
        self._thread.join()

    def _run(self) -> None:
        while self._due.wait() and not self._stopped:
            self._due.clear()
            try:
                self.run_once()
            except (OSError, CorruptLog, StorageError) as exc:
                _LOGGER.warning("keys of %s are not indexed, and found more slowly: %s", self._root, exc)

    def run_once(self) -> None:
        """Indexes each finished file that has no index, or a damaged one. Raises StorageError, CorruptLog."""
        with self._one_at_a_time:
            self._index_all()

    def _index_all(self) -> None:
        firsts = self._log.files()
        self._files &= set(firsts)
        for left in set(files_of(self._root / "keys", ".keys")).difference(firsts):
            keys_file(self._root, left).unlink(missing_ok=True)  # retention deleted its file while it was indexed
        for first, end in pairwise(firsts):
            if self._stopped:
                return
            if first not in self._files and not self._is_in_order(first, end):
                try:
                    self._index(first, end)
                except CorruptLog:
                    if first in self._log.files():  # else retention has deleted it meanwhile
                        raise

    def _is_in_order(self, first: int, end: int) -> bool:
        try:
            KeysFile(self._root, self._log_id, first, end)
        except BadKeys:
            return False
        self._files.add(first)
        return True

    def _index(self, first: int, end: int) -> None:
        parts = []
        for each in index_keys(self._log, first, first, end):
            if self._stopped:
                return
            parts.append(each)
        parts[-1] = parts[-1]._replace(end=end)
        write_keys(self._root, self._log_id, first, parts)
        self._files.add(first)
