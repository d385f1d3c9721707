"""Finds messages by key: sorted key hashes per file of the commit log. docs/log_format.md specifies the bytes.

Hashes are hints: the frames that they point to are read, verified and compared. They are computed many at a time, with
numpy, and not while appending: a file gets its index after it is completed. The open file is indexed in memory when it
is first searched.
"""

from __future__ import annotations

import os
import struct
import threading
from collections import OrderedDict
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from google_crc32c import value as crc32c
from numpy.typing import NDArray

from txmsg.errors import CorruptLog, StorageError
from txmsg.metaq.format.frame import (
    HEADER_SIZE_BYTES_MAX,
    MAGIC,
    BadFrame,
    FrameColumn,
    Header,
    payload_of,
    read_header,
    verify,
)
from txmsg.metaq.store.commit_log import CommitLogReader, files_of
from txmsg.metaq.store.state import write_whole
from txmsg.runtime.logs import EventLog

_log = EventLog(__name__)

_Hashes: TypeAlias = NDArray[np.uint64]

_MAGIC: Final = b"TXK1"
_HEAD: Final = struct.Struct("<4sIQQQQ")
_BLOCK: Final = np.dtype([("first", "<u8"), ("crc", "<u4"), ("zero", "<u4")])
BLOCK_COUNT: Final = 4096
_ENTRY_SIZE_BYTES: Final = 8 + 4
KEYS_AT_ONCE: Final = 65_536
"""Keys of a part at least, if another one follows."""
_FACTOR: Final = 0x9E3779B97F4A7C15
_ALL: Final = 2**64 - 1
_IN_MEMORY_MAX: Final = 4


class BadKeys(Exception):
    """An invalid index of this file of the log; the text says why."""


class FrameKeys(NamedTuple):
    """The keys of consecutive frames: hashes, and for each its frame's position in the file, divided by 8."""

    hashes: _Hashes
    places: NDArray[np.uint32]
    end: int
    """The position up to which frames were read."""

    def with_next(self, others: FrameKeys) -> FrameKeys:
        """Return these keys, and those of the frames that follow."""
        hashes, places = np.concatenate((self.hashes, others.hashes)), np.concatenate((self.places, others.places))
        return FrameKeys(hashes, places, others.end)


def keys_file(root: Path, first: int) -> Path:
    """Return the index of the commitlog file that begins at this position."""
    return root / "keys" / f"{first:020}.keys"


# ---- hashing


def key_hash(topic: str, key: str) -> int:
    """Return the hash of a key of a topic."""
    data = key.encode()
    return int(_hashes(np.array([_folded(topic)], np.uint64), np.array([len(data)]), data)[0])


@lru_cache(maxsize=1024)
def _folded(topic: str) -> int:
    """Return the hash of a topic's bytes and a zero, with which the hashes of its keys begin."""
    folded = 0
    for byte in (*topic.encode(), 0):
        folded = (folded * _FACTOR + byte + 1) & _ALL
    return folded


@lru_cache(maxsize=1)
def _powers(count: int) -> _Hashes:
    """Return the powers of the factor, modulo 2**64."""
    factors = np.full(count, _FACTOR, np.uint64)
    factors[0] = 1
    return np.cumprod(factors, dtype=np.uint64)


def _hashes(folded: _Hashes, lengths: NDArray[np.int64], data: bytes) -> _Hashes:
    """Return the hash of each key: folded * F + byte + 1 for byte after byte, modulo 2**64, and mixed.

    Keys are not empty.
    """
    # A polynomial of the bytes, because numpy evaluates it for all keys of a part at once: one multiplication with a
    # power per byte. The two rounds at the end are MurmurHash3's, which spread high bits to low ones.
    ends = np.cumsum(lengths)
    powers = _powers(1 << int(np.max(lengths)).bit_length())
    from_end = np.repeat(ends - 1, lengths) - np.arange(len(data))
    terms = (np.frombuffer(data, np.uint8).astype(np.uint64) + np.uint64(1)) * powers[from_end]
    hashes: _Hashes = folded * powers[lengths] + np.add.reduceat(terms, ends - lengths)
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        hashes ^= hashes >> np.uint64(33)
        hashes *= np.uint64(factor)
    return hashes ^ (hashes >> np.uint64(33))


# ---- reading frames


def index_keys(log: CommitLogReader, first: int, start: int, end: int) -> Iterator[FrameKeys]:
    """Return the keys of the frames from `start` to `end`, in the commitlog file that begins at `first`, part by part.

    Damaged data is skipped if frames follow; otherwise it may be half written, and indexing ends before it.
    """
    topics: list[int] = []
    counts: list[int] = []
    places: list[int] = []
    ends: list[NDArray[np.int32]] = []
    data: list[bytes] = []
    held = 0

    def keys(end: int) -> FrameKeys:
        if not held:
            return FrameKeys(np.empty(0, np.uint64), np.empty(0, np.uint32), end)
        lengths = np.concatenate([batch_ends[1:] - batch_ends[:-1] for batch_ends in ends]).astype(np.int64)
        # An empty key counts as none, and gets no entry.
        there = lengths > 0
        folded = np.repeat(np.array(topics, np.uint64), counts)[there]
        of_keys = np.repeat(np.array(places, np.uint32), counts)[there]
        return FrameKeys(_hashes(folded, lengths[there], b"".join(data)), of_keys, end)

    position = start
    for header, stored in _keyed_frames(log, start, end):
        position = header.end
        if stored is None:
            continue
        of_values, values = payload_of(header, stored)["key"]
        topics.append(_folded(header.topic))
        counts.append(header.count)
        places.append((header.position - first) // 8)
        ends.append(np.frombuffer(of_values, np.int32).copy())  # or all that was read ahead would be held
        data.append(values.to_pybytes())
        held += header.count
        if held >= KEYS_AT_ONCE:
            yield keys(position)
            for column in (topics, counts, places, ends, data):
                column.clear()
            held = 0
    yield keys(position)


def _keyed_frames(log: CommitLogReader, start: int, end: int) -> Iterator[tuple[Header, memoryview | None]]:
    """Return the headers of frames, and their payloads if they have keys."""
    position = start
    while position < end:
        try:
            header = read_header(log.ahead(position, min(HEADER_SIZE_BYTES_MAX, end - position), end))
            if header.position != position or header.end > end:
                raise BadFrame("it does not stand where it was written")
            has_keys = header.columns & FrameColumn.KEY.value
            stored = verify(header, log.ahead(position, header.size_bytes, end)) if has_keys else None
        except BadFrame:
            # Damage is reported by readers of the messages. An index is a hint, so it covers what is whole.
            position = log.find_bytes(MAGIC, position + 1, end)
            continue
        yield header, stored
        position = header.end


# ---- files


def write_keys(root: Path, log_id: int, first: int, parts: list[FrameKeys]) -> None:
    """Write the index of a finished file. Raises StorageError."""
    hashes = np.concatenate([part.hashes for part in parts])
    places = np.concatenate([part.places for part in parts])
    order = np.argsort(hashes, kind="stable")  # so that the places of one hash still rise
    hashes, places = hashes[order], places[order]
    again = np.zeros(len(hashes), bool)
    again[1:] = (hashes[1:] == hashes[:-1]) & (places[1:] == places[:-1])  # a key twice in a frame
    hashes, places = hashes[~again], places[~again]
    starts = range(0, len(hashes), BLOCK_COUNT)
    blocks = [
        hashes[start : start + BLOCK_COUNT].tobytes() + places[start : start + BLOCK_COUNT].tobytes()
        for start in starts
    ]
    table = np.zeros(len(blocks), _BLOCK)
    table["first"] = hashes[::BLOCK_COUNT]
    table["crc"] = [crc32c(block) for block in blocks]
    head = _HEAD.pack(_MAGIC, 0, log_id, first, parts[-1].end, len(hashes))[8:] + table.tobytes()
    path = keys_file(root, first)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    write_whole(path, b"".join((_MAGIC, crc32c(head).to_bytes(4, "little"), head, *blocks)))


class KeysFile:
    """The index of a completed file. Only its table is kept in memory. Raises BadKeys if it is invalid or damaged."""

    def __init__(self, root: Path, log_id: int, first: int, end: int) -> None:
        self._path = keys_file(root, first)
        try:
            with self._path.open("rb") as file:
                head = file.read(_HEAD.size)
                if len(head) < _HEAD.size:
                    raise BadKeys("it is cut off")
                magic, crc, of_log, of_first, of_end, self._count = _HEAD.unpack(head)
                blocks = -(-self._count // BLOCK_COUNT)
                if (
                    os.fstat(file.fileno()).st_size
                    != _HEAD.size + blocks * _BLOCK.itemsize + self._count * _ENTRY_SIZE_BYTES
                ):
                    raise BadKeys("its length is not what it says")
                table = file.read(blocks * _BLOCK.itemsize)
        except FileNotFoundError as exc:
            raise BadKeys("it is missing") from exc
        if magic != _MAGIC or crc32c(head[8:] + table) != crc:
            raise BadKeys("it does not match its checksum")
        if (of_log, of_first, of_end) != (log_id, first, end):
            raise BadKeys("it belongs to another file")
        self._table = np.frombuffer(table, _BLOCK)
        self._begin = _HEAD.size + len(table)

    def check(self) -> None:
        """Read all of it. Raises BadKeys for a block that is damaged."""
        for number in range(len(self._table)):
            self._in_block(number, 0)

    def places(self, key: int) -> list[int]:
        """Return the begins of frames that may have a key of this hash: rising, from the begin of the file, over 8."""
        firsts = self._table["first"]
        number = max(0, int(np.searchsorted(firsts, np.uint64(key))) - 1)
        found: list[int] = []
        while number < len(firsts) and firsts[number] <= key:
            found += self._in_block(number, key)
            number += 1
        return found

    def _in_block(self, number: int, key: int) -> list[int]:
        count = min(BLOCK_COUNT, self._count - number * BLOCK_COUNT)
        try:
            with self._path.open("rb") as file:
                data = os.pread(
                    file.fileno(), count * _ENTRY_SIZE_BYTES, self._begin + number * BLOCK_COUNT * _ENTRY_SIZE_BYTES
                )
        except FileNotFoundError as exc:
            raise BadKeys("it is missing") from exc
        if crc32c(data) != self._table["crc"][number]:
            raise BadKeys(f"block {number} does not match its checksum")
        hashes, places = np.frombuffer(data, "<u8", count), np.frombuffer(data, "<u4", count, 8 * count)
        return [int(place) for place in places[hashes == np.uint64(key)]]


# ---- which frames may hold a key: by the index of each finished file, in memory for the open one or where none is


class KeyFinder:
    """Looks up keys, in any process. Caches its index of the open file in memory."""

    def __init__(self, root: Path, log_id: int, log: CommitLogReader) -> None:
        self._root = root
        self._log_id = log_id
        self._log = log
        self._files: dict[int, KeysFile] = {}
        self._in_memory: OrderedDict[int, list[FrameKeys]] = OrderedDict()

    def positions(self, topic: str, key: str) -> Iterator[int]:
        """Yield the positions of frames that may have a message with this key, oldest first."""
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
                    if first in self._log.files():  # otherwise retention has deleted it meanwhile
                        raise
                    continue
            yield from (first + 8 * place for place in places)

    def _in_file(self, first: int, end: int, sought: int) -> list[int] | None:
        """Search the index of a finished file; return None if there is none that can be read."""
        try:
            if first not in self._files:
                self._files[first] = KeysFile(self._root, self._log_id, first, end)
            places = self._files[first].places(sought)
        except BadKeys as exc:
            self._files.pop(first, None)
            if keys_file(self._root, first).exists():
                _log.warning(
                    "log.keys_unusable", "%(path)s is not used: %(error)s", path=keys_file(self._root, first), error=exc
                )
            return None
        self._in_memory.pop(first, None)
        return places

    def _in_parts(self, first: int, end: int, sought: int) -> list[int]:
        """Search an index in memory, built up to the file's current end."""
        parts = self._in_memory.setdefault(first, [])
        self._in_memory.move_to_end(first)
        if len(self._in_memory) > _IN_MEMORY_MAX:
            self._in_memory.popitem(last=False)
        start = parts[-1].end if parts else first
        if start < end or not parts:
            for part in index_keys(self._log, first, start, end):
                # Small parts are joined, so a file that grows between searches does not collect many of them.
                small = parts.pop() if parts and len(parts[-1].hashes) < KEYS_AT_ONCE else None
                parts.append(small.with_next(part) if small else part)
        found = np.concatenate([part.places[part.hashes == np.uint64(sought)] for part in parts])
        return [int(place) for place in np.unique(found)]


class KeyIndexer:
    """Writes missing indexes of completed files, on its own thread. Retries those that cannot be written."""

    def __init__(self, root: Path, log_id: int) -> None:
        self._root = root
        self._log_id = log_id
        self._log = CommitLogReader(root / "commitlog")
        self._files: set[int] = set()  # whose index is known to be in order
        self._one_at_a_time = threading.Lock()
        self._stopped = False
        self._due = threading.Event()
        # Not done by the append: hashing 100 keys takes 10 us, a quarter of an append (decision 0021).
        self._thread = threading.Thread(target=self._run, name="txmsg-metaq-keys", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._due.set()
        self._thread.start()

    def wake(self) -> None:
        """Notify the thread of a finished file."""
        self._due.set()

    def stop(self) -> None:
        """Stop the thread, within a part of a file; the rest is indexed when the log is opened next."""
        self._stopped = True
        self._due.set()
        self._thread.join()

    def _run(self) -> None:
        while self._due.wait() and not self._stopped:
            self._due.clear()
            try:
                self.run_once()
            except (OSError, CorruptLog, StorageError) as exc:
                _log.warning(
                    "log.keys_not_indexed",
                    "keys of %(log)s are not indexed, and found more slowly: %(error)s",
                    log=self._root,
                    error=exc,
                )
            except Exception:  # noqa: BLE001 - the root of a thread
                _log.exception("log.keys_failed", "keys of %(log)s are indexed later", log=self._root)

    def run_once(self) -> None:
        """Index each finished file that has no index, or a damaged one. Raises StorageError, CorruptLog."""
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
                    if first in self._log.files():  # otherwise retention has deleted it meanwhile
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
        for part in index_keys(self._log, first, first, end):
            if self._stopped:
                return
            parts.append(part)
        # The end of the file, not of its last whole frame: `KeysFile` compares it with the begin of the next file.
        parts[-1] = parts[-1]._replace(end=end)
        write_keys(self._root, self._log_id, first, parts)
        self._files.add(first)
