"""Compares a queue's frames with each other and with its cells. Pure, but for reading the files of cells."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from google_crc32c import extend
from numpy.typing import NDArray

from txmsg.metaq.format.frame import FrameKind
from txmsg.metaq.fsck.report import Problem
from txmsg.metaq.fsck.scan import Scan
from txmsg.metaq.store.cells import CELL, CELL_SIZE_BYTES, Cell, Cells, cells_file, queue_directory, seed_of
from txmsg.metaq.store.state import Checkpoint, QueueKey

_CUTS = (FrameKind.CUT.value, FrameKind.LOST.value)
_COMPARED = ("base_offset", "position", "size", "count", "header_crc")


@dataclass(frozen=True, slots=True)
class Gap:
    """Offsets that no frame holds, and the positions between which the frame must have stood."""

    begin: int
    end: int
    after: int
    before: int


@dataclass(slots=True)
class QueueCheck:
    """One queue. `run` fills the fields that follow."""

    root: Path
    key: QueueKey
    scan: Scan
    known: Checkpoint | None
    is_synchronous: bool
    log_end: int
    """The end of the scan: everything behind it was written later."""
    live: NDArray[np.void] = field(init=False)
    """The frames that a reader may be given: those that no cut has made void."""
    gaps: list[Gap] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    named: list[Cell] = field(default_factory=list)
    """The whole cells of frames that are damaged or missing."""
    end: int | None = None
    """The offset at which the queue continues, by frames and cells; None if neither tells."""
    void: dict[int, int] = field(default_factory=dict)
    """The positions of frames that a cut has made void, each with the position of that cut."""

    def run(self) -> None:
        """Check the queue."""
        cells = self._cells()
        self.scan.give_up(self.key, cells)
        self.live = self._kept(self.scan.of(self.key))
        if len(self.live):
            self.end = int(self.live["end_offset"][-1])
        self._compare(cells)
        self._check_end()

    # ---- frames

    def _kept(self, frames: NDArray[np.void]) -> NDArray[np.void]:
        """Return the frames that no cut has made void. Records gaps, and offsets that exist twice."""
        begins, ends = frames["base_offset"], frames["end_offset"]
        # Nearly every queue has neither cuts nor gaps, which one comparison of columns tells.
        if (begins[1:] == ends[:-1]).all():
            return frames
        kept: list[int] = []
        for place, frame in enumerate(frames):
            begin, position = int(frame["base_offset"]), int(frame["position"])
            last = int(ends[kept[-1]]) if kept else begin
            if begin < last:
                after = int(frames["position"][kept[-1]])
                if frame["kind"] not in _CUTS and not self._is_damaged(after, position):
                    self._note(f"offset {begin} is there a second time: the queue goes on at {last}", position)
                    continue
                if frame["kind"] not in _CUTS:
                    self._lost_cut(begin, after, position)
                while kept and begins[kept[-1]] >= begin:
                    self.void[int(frames["position"][kept.pop()])] = position
                last = int(ends[kept[-1]]) if kept else begin
            if begin > last:
                before = frames[kept[-1]]
                self.gaps.append(Gap(last, begin, int(before["position"] + before["size"]), position))
            kept.append(place)
        return frames[kept]

    def _lost_cut(self, offset: int, after: int, before: int) -> None:
        """Record a cut between these positions whose frame is damaged."""
        region = next(region for region in self.scan.regions if after < region.end and region.begin < before)
        if (*self.key, offset) not in region.cuts:
            region.cuts.append((*self.key, offset))

    def _is_damaged(self, after: int, before: int) -> bool:
        return any(after < region.end and region.begin < before for region in self.scan.regions)

    # ---- cells

    def _cells(self) -> NDArray[np.void]:
        """Return the cells that are whole and point at kept frames."""
        cells = Cells(queue_directory(self.root, *self.key))
        seed = seed_of(self.scan.identity.log_id, *self.key)
        found = [np.empty(0, CELL)]
        for base in cells.files():
            path = cells_file(cells.directory, base)
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                continue  # cut off, or deleted by retention, meanwhile
            if len(data) % CELL_SIZE_BYTES:
                self._cell_problem(path, f"has {len(data)} bytes: half a cell is at its end")
            rows = np.frombuffer(data[: len(data) // CELL_SIZE_BYTES * CELL_SIZE_BYTES], CELL)
            whole = np.fromiter(
                (
                    extend(seed, data[at : at + CELL_SIZE_BYTES - 4]) == crc
                    for at, crc in zip(range(0, len(data), CELL_SIZE_BYTES), rows["crc"].tolist(), strict=False)
                ),
                bool,
                len(rows),
            )
            if not whole.all():
                self._cell_problem(
                    path, f"{(~whole).sum()} cells do not match their checksums, cell {int(np.argmin(whole))} first"
                )
            if len(rows) and whole[0] and rows["base_offset"][0] != base:
                self._cell_problem(path, f"its first cell is of offset {rows['base_offset'][0]}")
            found.append(rows[whole])
            if not len(rows) and len(cells.files()) == 1:
                self.end = base if self.end is None else self.end
        joined = np.concatenate(found)
        gone = joined[joined["position"] < self.scan.begin]
        if len(gone) and self.end is None:
            self.end = int(gone["base_offset"][-1] + gone["count"][-1])
            if not gone["count"][-1] and self.known:  # a hole: retention has noted where it ended
                self.end = max(self.end, self.known.ends.get(self.key, 0))
        return joined[joined["position"] >= self.scan.begin]

    def _compare(self, cells: NDArray[np.void]) -> None:
        file = str(queue_directory(self.root, *self.key).relative_to(self.root))
        frames, positions = self.live, self.live["position"]
        places = np.searchsorted(positions, cells["position"])
        there = places < len(positions)
        there[there] = positions[places[there]] == cells["position"][there]
        stray = cells[~there]
        self._judge_strays(file, stray)
        cells, places = cells[there], places[there]
        same = np.ones(len(cells), bool)
        for name in _COMPARED:
            same &= cells[name].astype(np.int64) == frames[name][places]
        if not same.all():
            first = cells[~same][0]
            self._note(
                f"the cell of offset {first['base_offset']} is not that of its frame", int(first["position"]), file
            )
        rising = places[1:] > places[:-1]
        if not rising.all():
            first = cells[1:][~rising][0]
            self._note(
                f"the cell of offset {first['base_offset']} is there twice, or in the place of another",
                int(first["position"]),
                file,
            )
        self._check_times(file, cells, frames[places])
        missing = np.ones(len(frames), bool)
        missing[places] = False
        missing &= positions < (self.known.position if self.known else 0)
        if missing.any():
            first = frames[missing][0]
            self._note(
                f"{missing.sum()} frames have no cell, that of offset {first['base_offset']} first",
                int(first["position"]),
                file,
            )

    def _judge_strays(self, file: str, stray: NDArray[np.void]) -> None:
        known = self.known.position if self.known else 0
        for cell in stray:
            named = Cell._make(cell.item())
            base, position, size = named[:3]
            if self.void.get(position, -1) >= known:
                continue  # a cut that is under way, or that a crash has interrupted: opening the log drops the cell
            if position >= self.scan.end:
                if (self.is_synchronous and position + size <= self.log_end) or position < known:
                    self.named.append(named)
            elif self._is_damaged(position, position + 1):
                self.named.append(named)
            else:
                self._note(
                    f"the cell of offset {base} names position {position}, where none of its frames begins",
                    position,
                    file,
                )

    def _check_times(self, file: str, cells: NDArray[np.void], frames: NDArray[np.void]) -> None:
        """Check that each cell has its frame's time, or that of the cell before."""
        found, times = cells["last_stored_at"], frames["last_stored_at"]
        expected = times.copy()
        expected[1:] = np.maximum(times[1:], found[:-1])
        wrong = found != expected
        if len(wrong):
            wrong[0] = found[0] < times[0]
        if wrong.any():
            first = cells[wrong][0]
            self._note(
                f"the cell of offset {first['base_offset']} has another time than its frame",
                int(first["position"]),
                file,
            )

    def _check_end(self) -> None:
        if self.known is None or self.key not in self.known.ends:
            return
        known = self.known.ends[self.key]
        if (self.end or 0) < known and not (self.live["kind"] == FrameKind.CUT.value).any():
            last = self.live[-1] if len(self.live) else None
            after = int(last["position"] + last["size"]) if last is not None else self.scan.begin
            self.gaps.append(Gap(self.end or 0, known, after, self.known.position))

    # ---- what is said

    def _cell_problem(self, path: Path, text: str) -> None:
        self.problems.append(Problem(file=str(path.relative_to(self.root)), text=text))

    def _note(self, text: str, position: int, file: str = "commitlog") -> None:
        topic, queue = self.key
        self.problems.append(Problem(file=file, text=f"topic {topic} queue {queue}: {text}", position=position))
