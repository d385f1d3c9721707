"""Reads every frame of a log, whatever it contains: whole frames by queue, and the places without one."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from txmsg.errors import CorruptLog
from txmsg.metaq.format.frame import (
    HEADER_SIZE_BYTES_MAX,
    MAGIC,
    BadFrame,
    FrameKind,
    Header,
    layout,
    raw_of,
    read_header,
)
from txmsg.metaq.store.commit_log import CommitLogReader, log_file
from txmsg.metaq.store.frames import next_frame, verified_payload, whole_frame
from txmsg.metaq.store.state import LogIdentity, QueueKey

FRAME: Final = np.dtype(
    [
        ("base_offset", "<i8"),
        ("end_offset", "<i8"),
        ("position", "<i8"),
        ("size", "<i8"),
        ("count", "<i8"),
        ("last_stored_at", "<i8"),
        ("header_crc", "<i8"),
        ("kind", "<i8"),
    ]
)
"""The values that are remembered of a frame."""
_POSITION: Final = 2
_END = struct.Struct("<Q")
_TWO = struct.Struct("<ii")
Progress: TypeAlias = Callable[[int], None]
"""Called with the number of bytes that were read since the last call."""

_PROGRESS_BYTES = 4 * 1024 * 1024


@dataclass(slots=True)
class Region:
    """Positions without a whole frame. header: the header of the frame there, if it can be read."""

    begin: int
    end: int
    why: str
    header: Header | None = None
    is_file: bool = True
    """False if no file holds these positions."""
    is_excess: bool = False
    """True for bytes of a file that continues past the begin of the next one."""
    generation: int = 1
    """The generation of the frame before."""
    on_disk: int = 0
    """At the log's end: the position up to which something says that it was on disk."""
    cuts: list[tuple[str, int, int]] = field(default_factory=list)
    """Topics, queues and offsets at which these must have been cut here."""
    is_begun: bool = False
    """True if a writer that ends in the middle of a frame leaves such bytes."""


@dataclass(slots=True)
class Scan:
    """The frames that were read so far. Call `run` again to read frames that were appended since."""

    root: Path
    identity: LogIdentity
    begin: int = 0
    end: int = 0
    """The position after the last whole frame, or after the last byte where damage is known to be in the middle."""
    seen: int = 0
    """The position after the last byte that was there."""
    synced: int = 0
    """The position up to which frames say that the log was on disk."""
    frames: int = 0
    messages: int = 0
    pads_bytes: int = 0
    regions: list[Region] = field(default_factory=list)
    """Damage that frames follow."""
    stale: set[int] = field(default_factory=set)
    """Positions of frames that are whole, but are not the last that were written there."""
    untidy: list[tuple[int, int]] = field(default_factory=list)
    """Positions of bytes behind a whole frame that are not zeros, though they have no meaning, and their numbers."""
    torn: Region | None = None
    """The broken end: half written, cut off, or damaged."""
    queues: dict[QueueKey, array[int]] = field(default_factory=dict)
    _generation: int = 0

    def of(self, key: QueueKey) -> NDArray[np.void]:
        """Return the frames of a queue that are kept, by position."""
        if key not in self.queues:
            return np.empty(0, FRAME)
        frames = np.array(self.queues[key], np.int64).view(FRAME)
        frames = frames[frames["position"] >= self.begin]
        return frames[~np.isin(frames["position"], list(self.stale))] if self.stale else frames

    def give_up(self, key: QueueKey, cells: NDArray[np.void]) -> None:
        """Treat frames as damaged that cells name by another checksum. One of both is stale: nothing tells which."""
        frames = self.of(key)
        places = np.searchsorted(frames["position"], cells["position"])
        there = places < len(frames)
        there[there] = frames["position"][places[there]] == cells["position"][there]
        differ = cells["header_crc"][there].astype(np.int64) != frames["header_crc"][places[there]]
        for frame in frames[places[there]][differ]:
            begin = int(frame["position"])
            # The writer may have refilled the hole since it was read.
            if not self._is_replaced(key, begin, int(frame["header_crc"])):
                self.stale.add(begin)
                self.regions.append(
                    Region(begin, begin + int(frame["size"]), "a stale frame, or one whose cell is stale")
                )

    def _is_replaced(self, key: QueueKey, position: int, header_crc: int) -> bool:
        """Return True if another frame stands there since it was read, in the place of a hole. Remembers that one."""
        log = CommitLogReader(self.root / "commitlog")
        try:
            first = max(file for file in log.files() if file <= position)
            file_end = first + log_file(log.directory, first).stat().st_size
            header = whole_frame(log, self.identity.log_id, position, file_end)
        except (BadFrame, CorruptLog, ValueError, FileNotFoundError):
            return False
        if header.header_crc == header_crc or (header.topic, header.queue) != key or not header.count:
            return False
        known = self.queues[key]
        at = next(at for at in range(0, len(known), len(FRAME.names or ())) if known[at + _POSITION] == position)
        known[at : at + len(FRAME.names or ())] = _remembered(header, header.base_offset + header.count)
        self.messages += header.count
        return True

    def run(self, progress: Progress) -> None:
        """Read to the current end of the log. `progress`: called now and then with the number of bytes read."""
        log = CommitLogReader(self.root / "commitlog")
        firsts = log.files()
        if firsts and firsts[0] > self.begin:  # or retention has deleted files since
            self.begin, self.end = firsts[0], max(self.end, firsts[0])
            self.regions = [region for region in self.regions if region.begin >= self.begin]
        self.regions = [region for region in self.regions if region.begin not in self.stale]
        self.stale.clear()  # a cell that was being written is whole by now
        self.torn = None
        for first in firsts:
            try:
                size = log_file(log.directory, first).stat().st_size
            except FileNotFoundError:
                continue  # deleted by retention meanwhile
            self.seen = first + size
            following = next((file for file in firsts if file > first), None)
            if following is not None and first + size > following:
                self.regions.append(
                    Region(following, first + size, "the file is longer than it may be", is_excess=True)
                )
                size = following - first
            if first + size <= self.end:
                continue
            if first > self.end:
                self.regions.append(
                    Region(self.end, first, "no file holds this", is_file=False, generation=max(1, self._generation))
                )
            try:
                self._read_file(log, max(first, self.end), first + size, progress, is_last=following is None)
            except CorruptLog:
                continue  # cut off, or deleted, meanwhile: the next scan shows it

    def _read_file(self, log: CommitLogReader, position: int, end: int, progress: Progress, *, is_last: bool) -> None:
        since = position
        while position < end:
            if position - since >= _PROGRESS_BYTES:
                progress(position - since)
                since = position
            head = log.ahead(position, min(HEADER_SIZE_BYTES_MAX, end - position), end)
            header: Header | None = None
            try:
                header = read_header(head)
                self._remember_frame(header, log, position, end)
                position = self.end = header.end
                continue
            except BadFrame as exc:
                why = str(exc)
            # Frames are aligned to 8 bytes, so the next one cannot begin earlier.
            following = next_frame(log, self.identity.log_id, position + 8, end)
            if following is None and is_last:
                self.torn = Region(
                    position, end, why, _believed(header, self.identity, position, end),
                    is_begun=_is_begun(header, self.identity, bytes(head), position),
                )  # fmt: skip
                break
            region_end = following.position if following else end
            believed = _believed(header, self.identity, position, region_end)
            region_end = believed.end if believed else region_end
            self.regions.append(Region(position, region_end, why, believed, generation=max(1, self._generation)))
            position = self.end = region_end
        progress(max(0, position - since))

    def _remember_frame(self, header: Header, log: CommitLogReader, position: int, end: int) -> None:
        """Remember a frame if it is whole in every way; otherwise raise BadFrame."""
        stored = verified_payload(header, log, self.identity.log_id, position, end)
        data = log.ahead(position, header.size_bytes, end)
        used = header.start + header.payload_size_bytes
        if header.size_bytes < used or header.size_bytes % 8:
            raise BadFrame(f"the frame has {header.size_bytes} bytes, and its parts need {used}")
        if any(data[used : header.size_bytes]):
            self.untidy.append((position + used, header.size_bytes - used))
        # A frame cannot know more than was on disk before it: such a header is whole and wrong.
        if header.synced > position:
            raise BadFrame(f"it says that position {header.synced} was on disk before it was written")
        if header.generation < self._generation:
            raise BadFrame(f"it is of generation {header.generation}, after one of {self._generation}")
        if header.generation > self.identity.generation:
            raise BadFrame(f"it is of generation {header.generation}: log.json says {self.identity.generation}")
        end_offset = _end_offset(header, stored)
        self.synced = max(self.synced, header.synced)
        self._generation = header.generation
        self.frames += 1
        self.messages += header.count
        if header.kind is FrameKind.PAD:
            self.pads_bytes += header.size_bytes
            return
        queue = self.queues.get((header.topic, header.queue))
        if queue is None:
            queue = self.queues[header.topic, header.queue] = array("q")
        queue.extend(_remembered(header, end_offset))


def _remembered(header: Header, end_offset: int) -> array[int]:
    """Return the values that are remembered of a frame, in the form of `FRAME`."""
    return array(
        "q",
        (
            header.base_offset, end_offset, header.position, header.size_bytes, header.count, header.last_stored_at_us,
            header.header_crc, header.kind.value,
        ),
    )  # fmt: skip


def _believed(header: Header | None, identity: LogIdentity, position: int, end: int) -> Header | None:
    """Return the header of a damaged frame, if it is whole and belongs there."""
    if header is None or (header.position, header.log_id) != (position, identity.log_id) or header.end > end:
        return None
    return header


def _is_begun(header: Header | None, identity: LogIdentity, head: bytes, position: int) -> bool:
    """Return True if these bytes at the log's end may be the begin of a frame that was not written to its end."""
    if header is None:
        return len(head) < HEADER_SIZE_BYTES_MAX and head[: len(MAGIC)] == MAGIC[: len(head)]
    return (header.position, header.log_id) == (position, identity.log_id)


def _end_offset(header: Header, stored: memoryview) -> int:
    """Return the offset after the frame. Raises BadFrame for columns that cannot be read."""
    if header.is_hole:
        end = int(_END.unpack_from(stored)[0]) if len(stored) == _END.size and not header.count else 0
        if end <= header.base_offset:
            raise BadFrame(f"a hole from {header.base_offset} to {end} is none")
        return end
    if header.count:
        try:
            _check_columns(header, stored)
        except (ValueError, OSError, IndexError, KeyError, struct.error) as exc:
            raise BadFrame(f"its columns cannot be read: {exc}") from exc
    return header.base_offset + header.count


def _check_columns(header: Header, stored: memoryview) -> None:
    """Raise ValueError when values go beyond the payload, or do not follow each other."""
    raw, count, at = raw_of(header, stored), header.count, 0
    if len(raw) != header.raw_size_bytes:
        raise ValueError(f"{len(raw)} bytes, not {header.raw_size_bytes}")
    for name, width in layout(header.columns):
        if width:
            at += (width * count + 7) & ~7
            continue
        if count == 1:  # logs of small frames spend most of the time here
            begin, size = _TWO.unpack_from(raw, at)
            in_order = not begin and size >= 0
        else:
            ends = np.frombuffer(raw, np.int32, count + 1, at)
            size = int(ends[-1])
            in_order = not ends[0] and bool((ends[1:] >= ends[:-1]).all())
        if not in_order:
            raise ValueError(f"the values of column {name} do not follow each other")
        at += (4 * (count + 1) + 7 & ~7) + (size + 7 & ~7)
    if at != header.raw_size_bytes:
        raise ValueError(f"its columns need {at} bytes, not {header.raw_size_bytes}")
