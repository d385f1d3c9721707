"""The data source without Spark: the calls that Spark would make."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper, _streamReader

from txmsg.spark.reader import Task
from txmsg.spark.source import MetaqDataSource

Rows = list[tuple[str, int, int]]


def source(where: Path | str, topics: str = "*", **options: object) -> DataSource:
    """Return a source on a directory or a server."""
    place = {"path": str(where)} if isinstance(where, Path) else {"server": where}
    return MetaqDataSource({**place, "topics": topics, **{name: str(value) for name, value in options.items()}})


def batch_of(where: Path | str, topics: str = "*", **options: object) -> DataSourceReader:
    """Return a reader of a batch."""
    made = source(where, topics, **options)
    return made.reader(made.schema())  # type: ignore[arg-type]  # it gives a StructType


def stream_of(where: Path | str, topics: str = "*", **options: object) -> DataSourceStreamReader:
    """Return a reader of a stream, which begins at the earliest message unless options say otherwise.

    Chosen as Spark chooses it: with the option prefetch it is a simple one, in Spark's wrapper.
    """
    made = source(where, topics, **{"startingOffsets": "earliest", **options})
    return _streamReader(made, made.schema())  # type: ignore[arg-type]


def read(reader: DataSourceReader | DataSourceStreamReader, tasks: Sequence[InputPartition]) -> Rows:
    """Return topic, queue and offset of all messages of these tasks, as executors read them."""
    on_executor = pickle.loads(pickle.dumps(reader))
    return _rows_of(batch for task in tasks for batch in on_executor.read(pickle.loads(pickle.dumps(task))))


def _rows_of(batches: Iterable[pa.RecordBatch]) -> Rows:
    found: Rows = []
    for batch in batches:
        found += zip(*(batch[name].to_pylist() for name in ("topic", "queue", "offset")), strict=True)
    return sorted(found)


def all_of(where: Path | str, topics: str = "*", **options: object) -> Rows:
    """Return all messages of a batch."""
    reader = batch_of(where, topics, **options)
    return read(reader, reader.partitions())


def arrow(reader: DataSourceReader) -> list[Any]:
    """Return the Arrow batches of a read."""
    return [batch for task in reader.partitions() for batch in reader.read(task)]


def sizes(tasks: Sequence[InputPartition]) -> list[int]:
    """Return the number of messages of each task."""
    return [sum(part.size for part in task.parts) for task in tasks if isinstance(task, Task)]


def rows(topic: str, queue: int, begin: int, end: int) -> Rows:
    """Return messages of a queue, as `read` returns them."""
    return [(topic, queue, offset) for offset in range(begin, end)]


class Stream:
    """A query over a source, as Spark runs it: batch after batch, each recorded before it is read."""

    def __init__(self, reader: DataSourceStreamReader) -> None:
        self.reader = reader
        self.noted: list[dict[str, Any]] = []

    def next(self) -> Rows:
        """Return the next batch; empty if there are no new messages, in which case Spark records nothing."""
        start = self.noted[-1] if self.noted else self.reader.initialOffset()
        end = self.reader.latestOffset(start, self.reader.getDefaultReadLimit())
        if end == start:
            return []
        self.noted.append(end)
        tasks = self.reader.partitions(start, end)
        if isinstance(self.reader, _SimpleStreamReaderWrapper):
            prefetched: Any = self.reader.getCache(start, end)
            assert prefetched is not None, "nothing was prefetched"
            return _rows_of(prefetched)
        return read(self.reader, tasks)

    def again(self, batch_id: int) -> Rows:
        """Reread a batch as after a crash, when Spark asks again where the first one began."""
        start = self.noted[batch_id - 1] if batch_id else self.reader.initialOffset()
        return read(self.reader, self.reader.partitions(start, self.noted[batch_id]))

    def restarted(self, reader: DataSourceStreamReader) -> Stream:
        """Return the same query from its checkpoint, in a new process."""
        self.reader.stop()
        other = Stream(reader)
        other.noted = self.noted
        return other
