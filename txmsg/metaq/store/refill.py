"""Puts messages into a hole that a repair has left: docs/log_format.md, Repair."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from txmsg.errors import MisuseError
from txmsg.metaq.format.frame import Payload, fitted, pack
from txmsg.metaq.store.cells import CELL_SIZE_BYTES, Cell, Cells, cells_file, queue_directory, seed_of
from txmsg.metaq.store.commit_log import files_of, log_file
from txmsg.metaq.store.keys import keys_file
from txmsg.metaq.store.reader import LogReader

_HOLE_SIZE_BYTES: Final = 8


def refill(reader: LogReader, topic: str, number: int, base_offset: int, payload: Payload) -> bool:
    """Overwrite a hole by a frame with exactly its offsets, on disk.

    Returns False if the frame is larger than the hole.

    For the writer, when all cells are written. A crash leaves the hole, or damage that a repair turns into one.
    """
    queue = reader.queue(topic, number)
    base, place, header, end = queue.hole_at(base_offset)
    if (base_offset, base_offset + payload.count) != (header.base_offset, end):
        raise MisuseError(
            f"offsets {base_offset} to {base_offset + payload.count - 1} of topic {topic} queue {number} are not a "
            f"whole hole: one is from {header.base_offset} to {end - 1}; nothing was changed"
        )
    # `synced` and generation are the hole's: a frame in the middle must not claim more than was true at its position.
    frame = pack(
        payload, topic.encode(), number, base_offset, position=header.position, log_id=header.log_id,
        synced=header.synced, generation=header.generation,
    )  # fmt: skip
    if sum(map(len, frame)) > header.size_bytes:
        return False
    first = max(file for file in files_of(reader.root / "commitlog", ".log") if file <= header.position)
    data = fitted(frame, header.size_bytes).ljust(header.size_bytes, b"\0")
    _overwrite(
        log_file(reader.root / "commitlog", first), header.position - first, data, header.start + _HOLE_SIZE_BYTES
    )
    crc = int.from_bytes(data[4:8], "little")
    cell = Cell(base_offset, header.position, header.size_bytes, payload.count, payload.last_stored_at_us, crc)
    _overwrite_cells(
        queue_directory(reader.root, topic, number), seed_of(reader.log_id, topic, number), base, place, cell
    )
    keys_file(reader.root, first).unlink(missing_ok=True)  # it lacks their keys
    return True


def _overwrite(path: Path, at: int, data: bytes, head_size_bytes: int) -> None:
    """Write everything behind the head first: until the head is written the hole is whole."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.pwrite(fd, data[head_size_bytes:], at + head_size_bytes)
        os.fdatasync(fd)
        os.pwrite(fd, data[:head_size_bytes], at)
        os.fdatasync(fd)
    finally:
        os.close(fd)


def _overwrite_cells(directory: Path, seed: int, base: int, place: int, cell: Cell) -> None:
    """Write the hole's cell, and the times of later cells that are earlier now: times rise from cell to cell."""
    cells = Cells(directory)
    least_us = cell.last_stored_at_us
    if place:
        with cells.open(base) as file:
            least_us = max(least_us, file[place - 1].last_stored_at_us)
    while True:
        fd = os.open(cells_file(directory, base), os.O_WRONLY | os.O_CLOEXEC)
        try:
            with cells.open(base) as file:
                while place < len(file):
                    earlier = cell if file[place].base_offset == cell.base_offset else file[place]
                    if earlier is not cell and earlier.last_stored_at_us >= least_us:
                        os.fdatasync(fd)
                        return
                    earlier = earlier._replace(last_stored_at_us=least_us)
                    os.pwrite(fd, earlier.pack(seed), place * CELL_SIZE_BYTES)
                    place += 1
            os.fdatasync(fd)
        finally:
            os.close(fd)
        following = cells.following(base)
        if following is None:
            return
        base, place = following, 0
