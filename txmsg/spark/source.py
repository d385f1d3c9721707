"""The data source `metaq`: implements the interfaces that Spark calls.

A reader is made in several processes: one that plans, one that lives with a stream and keeps a log open, and those that
read. What travels between them is options, columns and tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ContextDecorator
from functools import cached_property
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    SimpleDataSourceStreamReader,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from txmsg.errors import TxmsgError
from txmsg.metaq.interface import LogAccess, LogQueue
from txmsg.metaq.location import open_log
from txmsg.spark.columns import ArrowColumns, schema_of
from txmsg.spark.options import ReadOptions, options_of
from txmsg.spark.planner import Planner
from txmsg.spark.position import StreamPosition, begins_between
from txmsg.spark.reader import Task, read_parts, read_task
from txmsg.spark.tasks import QueuePart, cut_into_tasks

_PREFETCHED_MAX: Final = 20_000
_PREFETCHED_BYTES_MAX: Final = 16 * 1024 * 1024
"""Maximum size of a prefetched batch, which is in memory as a whole; at least one message of each queue."""


class _ToldByItsText(ContextDecorator):
    """A context that removes an error's causes: Spark shows users the whole traceback, and the text of ours
    is enough.
    """

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, exc: BaseException | None, trace: object) -> None:
        if isinstance(exc, TxmsgError):
            raise exc.with_traceback(None) from None


class MetaqDataSource(DataSource):
    """`spark.read.format("metaq")` and `spark.readStream.format("metaq")`: messages of a MetaQ log."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return "metaq"

    def schema(self) -> StructType:
        """Return all columns; use `.schema("offset bigint, value binary")` of a read to select fewer."""
        return schema_of(include_headers=self._is_true("includeHeaders"))

    def _is_true(self, option: str) -> bool:
        return self.options.get(option, "false").strip().lower() == "true"

    @_ToldByItsText()
    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a batch read."""
        return _BatchReader(options_of(self.options, streaming=False), ArrowColumns(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return a streaming read. Its options are checked when it is first called.

        Spark replaces an error raised here by another one, because it then stops a reader that does not exist.
        """
        if self._is_true("prefetch"):
            return super().streamReader(schema)  # raises that there is none: Spark asks for the simple one
        return _StreamReader(self.options, schema)

    def simpleStreamReader(self, schema: StructType) -> SimpleDataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return a streaming read of small batches, with the option prefetch."""
        return _PrefetchingReader(self.options, schema)


class _BatchReader(DataSourceReader):
    """A batch read. No pushFilters: scans of a DataFrame share the plan of the first, or of the last that pushed
    filters.
    """

    def __init__(self, options: ReadOptions, columns: ArrowColumns) -> None:
        self._options = options
        self._columns = columns

    @_ToldByItsText()
    def partitions(self) -> Sequence[InputPartition]:
        with open_log(self._options.where) as log:
            parts = Planner(log, self._options).parts()
            return _tasks(parts, self._options, log)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with _ToldByItsText():
            yield from read_task(partition, self._options, self._columns)


class _PlannedStream(SupportsTriggerAvailableNow):
    """The common part of both stream readers: the log, open in the process that plans the stream's batches."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        self._given = given
        self._schema = schema
        self._opened: LogAccess | None = None
        self._target: dict[LogQueue, int] | None = None

    # Spark pickles a reader into the processes of its tasks, which must open the log themselves.
    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    @cached_property
    def _options(self) -> ReadOptions:
        return options_of(self._given, streaming=True)

    @cached_property
    def _columns(self) -> ArrowColumns:
        return ArrowColumns(self._schema)

    @property
    def _log(self) -> LogAccess:
        if self._opened is None:
            self._opened = open_log(self._options.where)
        return self._opened

    @property
    def _planner(self) -> Planner:
        return Planner(self._log, self._options)

    def _parts(self, start: StreamPosition, end: StreamPosition) -> list[QueuePart]:
        begins = begins_between(start, end)
        return [QueuePart(queue, begins[queue], at) for queue, at in end.offsets.items()]

    @_ToldByItsText()
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        assert self._columns  # wrong columns are reported at once, too
        return self._planner.initial().to_json()

    @_ToldByItsText()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._target = self._planner.ends()


class _StreamReader(_PlannedStream, DataSourceStreamReader):
    """A stream whose batches are read by tasks on executors."""

    @_ToldByItsText()
    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the limit. Spark calls this first, so wrong columns are reported here."""
        assert self._columns
        limit = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    @_ToldByItsText()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        count_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        position = StreamPosition.of_json(start)
        return self._planner.latest(position, count_max=count_max, target=self._target).to_json()

    @_ToldByItsText()
    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        return StreamPosition(self._log.identity(), self._planner.ends()).to_json()

    @_ToldByItsText()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        first, last = StreamPosition.of_json(start), StreamPosition.of_json(end)
        self._planner.require_same_log(last)
        return _tasks(self._parts(first, last), self._options, self._log)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with _ToldByItsText():
            yield from read_task(partition, self._options, self._columns)

    def stop(self) -> None:
        if self._opened is not None:
            self._opened.close()


class _PrefetchingReader(_PlannedStream, SimpleDataSourceStreamReader):
    """A stream whose batches are read while they are planned. Spark records the end of a batch before it uses the
    batch.
    """

    @_ToldByItsText()
    def read(self, start: dict[str, Any]) -> tuple[Iterator[pa.RecordBatch], dict[str, Any]]:
        """Return the next batch and its end. A batch that is too large for memory is replaced by a smaller one."""
        begin, count_max = StreamPosition.of_json(start), self._options.max_offsets_per_trigger or _PREFETCHED_MAX
        while True:
            end = self._planner.latest(begin, count_max=count_max, target=self._target)
            parts = [part for part in self._parts(begin, end) if part.size > 0]
            count = min(count_max, sum(part.size for part in parts))  # sizes include offsets that are missing
            found = self._prefetched(parts, can_be_less=count > len(parts))
            if found is not None:
                return iter(found), end.to_json()
            count_max = count // 2

    def _prefetched(self, parts: Iterable[QueuePart], *, can_be_less: bool) -> list[pa.RecordBatch] | None:
        """Return these messages; None if they are too large and can be fewer."""
        found: list[pa.RecordBatch] = []
        size_bytes = 0
        for batch in read_parts(self._log, parts, self._options, self._columns):
            found.append(batch)
            size_bytes += batch.nbytes
            if size_bytes > _PREFETCHED_BYTES_MAX and can_be_less:
                return None
        if len(found) < 2 or size_bytes > _PREFETCHED_BYTES_MAX:
            return found
        return [pa.concat_batches(found)]  # in the JVM a batch costs as much as a hundred messages

    def readBetweenOffsets(  # noqa: N802 - Spark's name
        self, start: dict[str, Any], end: dict[str, Any]
    ) -> Iterator[pa.RecordBatch]:
        """Yield a batch that was recorded and not used, as after a crash. Runs on an executor."""
        with _ToldByItsText(), open_log(self._options.where) as log:
            first, last = StreamPosition.of_json(start), StreamPosition.of_json(end)
            Planner(log, self._options).require_same_log(last)
            yield from read_parts(log, self._parts(first, last), self._options, self._columns)


def _tasks(parts: Iterable[QueuePart], options: ReadOptions, log: LogAccess) -> list[InputPartition]:
    identity = log.identity()
    cut = cut_into_tasks(parts, min_tasks=options.min_partitions, size_max=options.max_records_per_partition)
    return [Task(parts, identity) for parts in cut]
