"""Exports a range of a topic to files: Parquet, Arrow, or JSON lines. They get their names when they are complete."""

from __future__ import annotations

import base64
import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from txmsg.errors import MisuseError, StorageError
from txmsg.metaq.interface import LogAccess
from txmsg.metaq.store.commit_log import sync_directory
from txmsg.metaq.tables import TABLE_SCHEMA, MessageSpan, Skipped, read_span
from txmsg.runtime.owners import refusal_text, require_own

_GROUP_SIZE_BYTES: Final = 32 * 1024 * 1024
"""Bytes of messages that are written together: a row group of Parquet, a record batch of Arrow."""
_GROUP_COUNT: Final = 131_072
_FILES_OPEN_MAX: Final = 4
"""Files open at once. Messages of a queue are nearly in the order of time, so few of its days are written at once."""


class Format(Enum):
    """The value is the file extension."""

    PARQUET = ".parquet"
    ARROW = ".arrow"
    JSON_LINES = ".jsonl"

    @classmethod
    def of(cls, path: Path) -> Format | None:
        """Return the format by the end of a name; None for any other."""
        return next((each for each in cls if each.value == path.suffix), None)


class PartitionScheme(Enum):
    """The division of files into directories called NAME=VALUE."""

    QUEUE = "queue"
    DAY = "day"
    """The day on which a message was stored, in UTC."""


@dataclass(frozen=True, slots=True)
class Exported:
    """The result of an export."""

    messages: int
    files: tuple[Path, ...]
    size_bytes: int
    spans: tuple[MessageSpan, ...]
    """The exported range of each queue. The next export of the same queues can begin at their ends."""


def export(
    log: LogAccess,
    spans: Sequence[MessageSpan],
    to: Path,
    format: Format,
    *,
    partitions: Collection[PartitionScheme] | None = None,
    on_written: Callable[[int], object] = lambda count: None,
    on_missing: Skipped | None = None,
) -> Exported:
    """Write these messages to a new file, or with `partitions`, which may be empty, to files of a new directory.

    It appears under its name when all of it is on disk. A file of a directory has messages of one queue, in order:
    DIR/[queue=3/][day=2026-11-23/]queue-3.parquet. Values in a directory's name are not columns.

    on_written: called with how many messages more are done. Raises MisuseError if `to` is there, StorageError if it
    cannot be written or this is root and a directory on the way there another user's, and what `read_arrow` raises.
    """
    if to.exists():
        raise _exists(to)
    messages = 0
    with _appearing(to) as made:
        with _writing(to):
            target = _File(made, format, TABLE_SCHEMA) if partitions is None else _Directory(made, format, partitions)
        try:
            for span in spans:
                for batch in read_span(log, span, on_missing=on_missing):
                    with _writing(to):
                        target.add(batch)
                    messages += len(batch)
                    on_written(len(batch))
                with _writing(to):
                    target.end_queue()
        finally:
            with _writing(to):
                target.close()
        found = [path for path in made.rglob("*") if path.is_file()] if partitions is not None else [made]
        size_bytes = sum(path.stat().st_size for path in found)
        files = tuple(sorted(to / path.relative_to(made) for path in found))
    return Exported(messages, files, size_bytes, tuple(spans))


@contextmanager
def _appearing(to: Path) -> Iterator[Path]:
    """Yield a path beside it, which is renamed at the end, or deleted after an error."""
    require_own(to.parent, "the directory")
    with _writing(to):
        to.parent.mkdir(parents=True, exist_ok=True)
        require_own(to.parent, "the directory")  # another user may have been faster
        place = Path(tempfile.mkdtemp(prefix=f".{to.name}.", dir=to.parent))
    try:
        made = place / to.name
        yield made
        with _writing(to):
            _sync(made)
            # The name comes last: a program that waits for the file never reads a part of it.
            _name(made, to)
            sync_directory(to.parent)
    finally:
        shutil.rmtree(place, ignore_errors=True)


@contextmanager
def _writing(to: Path) -> Iterator[None]:
    """Raise StorageError with the reason for a failed write. Not around reads of the log, which fail for other
    reasons.
    """
    try:
        yield
    except OSError as exc:
        raise StorageError(f"{to} cannot be written: {refusal_text(exc, to)}; or name another place") from exc


def _name(made: Path, to: Path) -> None:
    """Rename the file to its name. Replaces no file that has got this name meanwhile."""
    if made.is_dir():
        made.rename(to)  # replaces an empty directory, and nothing else
        return
    try:
        # A link fails if the name exists; a rename would replace another program's file.
        os.link(made, to)
    except FileExistsError:
        raise _exists(to) from None
    except OSError:
        made.rename(to)  # a file system without hard links has no way that replaces nothing


def _exists(to: Path) -> MisuseError:
    return MisuseError(f"{to} exists: name another one, or delete it")


def _sync(path: Path) -> None:
    for each in (path, *path.rglob("*")):
        fd = os.open(each, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


# ---- where messages go


class _Target(Protocol):
    def add(self, batch: pa.RecordBatch) -> None: ...
    def end_queue(self) -> None: ...
    def close(self) -> None: ...


class _File:
    """One file. Collects messages, because readers need large row groups."""

    def __init__(self, path: Path, format: Format, schema: pa.Schema) -> None:
        self._schema = schema
        self._writer = _WRITERS[format](path, schema)
        self._gathered: list[pa.RecordBatch] = []
        self._count = self._size_bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        self._gathered.append(batch.select(self._schema.names))
        self._count += len(batch)
        self._size_bytes += batch.nbytes
        if self._count >= _GROUP_COUNT or self._size_bytes >= _GROUP_SIZE_BYTES:
            self._write()

    def _write(self) -> None:
        if self._gathered:
            self._writer.write_table(pa.Table.from_batches(self._gathered, self._schema).combine_chunks())
        self._gathered = []
        self._count = self._size_bytes = 0

    def end_queue(self) -> None:
        """End a queue; the next one goes into the same file."""

    def close(self) -> None:
        try:
            self._write()
        finally:
            self._writer.close()


class _Directory:
    """A file per queue."""

    def __init__(self, path: Path, format: Format, partitions: Collection[PartitionScheme]) -> None:
        path.mkdir()
        self._path = path
        self._format = format
        self._partitions = partitions
        names_queue = PartitionScheme.QUEUE in partitions
        self._schema = pa.schema([field for field in TABLE_SCHEMA if field.name != "queue" or not names_queue])
        self._open: dict[Path, _File] = {}
        """Open files by directory, in the order of opening."""
        self._files: Counter[Path] = Counter()

    def add(self, batch: pa.RecordBatch) -> None:
        queue = batch["queue"][0].as_py()
        place = self._path / f"queue={queue}" if PartitionScheme.QUEUE in self._partitions else self._path
        if PartitionScheme.DAY not in self._partitions:
            self._file(place, queue).add(batch)
            return
        days = pc.cast(batch["stored_at"], pa.date32(), safe=False)
        for day in days.unique():
            self._file(place / f"day={day}", queue).add(batch.filter(pc.equal(days, day)))

    def _file(self, place: Path, queue: int) -> _File:
        if place not in self._open:
            # The one that was opened first belongs to the earliest day, which has most likely ended.
            while len(self._open) >= _FILES_OPEN_MAX:
                self._open.pop(next(iter(self._open))).close()
            place.mkdir(parents=True, exist_ok=True)
            name = f"queue-{queue}"
            again = self._files[place / name]
            self._files[place / name] += 1
            path = place / f"{name}{f'-{again}' if again else ''}{self._format.value}"
            self._open[place] = _File(path, self._format, self._schema)
        return self._open[place]

    def end_queue(self) -> None:
        while self._open:
            self._open.popitem()[1].close()

    def close(self) -> None:
        self.end_queue()


# ---- formats


class _JsonLines:
    """A line of JSON per message, all with the same keys, whose values have the same types in each line.

    A body in UTF-8 is in `body`, another one in `body_base64`; the other of the two is "", not null: programs that read
    such files conclude the types from the first lines.
    """

    def __init__(self, path: Path, _: pa.Schema) -> None:
        self._file = path.open("w", encoding="utf-8")

    def write_table(self, table: pa.Table) -> None:
        for batch in table.to_batches(max_chunksize=10_000):
            self._file.writelines(f"{json.dumps(_for_json(row), ensure_ascii=False)}\n" for row in batch.to_pylist())

    def close(self) -> None:
        self._file.close()


def _for_json(row: dict[str, Any]) -> dict[str, Any]:
    body, row["body"], row["body_base64"] = row["body"], "", ""
    try:
        row["body"] = body.decode()
    except UnicodeDecodeError:
        row["body_base64"] = base64.b64encode(body).decode()
    headers = row["headers"]
    row["headers"] = None if headers is None else dict(headers)
    for name in ("born_at", "stored_at"):
        row[name] = row[name].isoformat(timespec="microseconds").replace("+00:00", "Z")
    return row


class _Writer(Protocol):
    def write_table(self, table: pa.Table) -> None: ...
    def close(self) -> None: ...


_WRITERS: Final[dict[Format, Callable[[Path, pa.Schema], _Writer]]] = {
    Format.PARQUET: lambda path, schema: pq.ParquetWriter(path, schema, compression="zstd"),
    Format.ARROW: pa.ipc.new_file,
    Format.JSON_LINES: _JsonLines,
}
