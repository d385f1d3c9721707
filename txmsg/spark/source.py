"""The data source `metaq`: implements the interfaces that Spark calls.

A reader is made in several processes: one that plans, one that lives with a stream and keeps a log open, and those that
read. What travels between them is options, columns and tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ContextDecorator
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from txmsg.errors import TxmsgError
from txmsg.metaq.access import LogAccess, LogQueue
from txmsg.metaq.location import open_log
from txmsg.spark.columns import Columns, schema_of
from txmsg.spark.options import ReadOptions, options_of
from txmsg.spark.planner import Planner
from txmsg.spark.position import Position, begins_between
from txmsg.spark.reader import Task, read_task
from txmsg.spark.tasks import Part, cut_into_tasks


class _ToldByItsText(ContextDecorator):
    """Spark shows users the whole traceback of an error, with all its causes; the text of ours is enough."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, exc: BaseException | None, trace: object) -> None:
        if isinstance(exc, TxmsgError):
            raise exc.with_traceback(None) from None


class MetaqDataSource(DataSource):
    """`spark.read.format("metaq")` and `spark.readStream.format("metaq")`: messages of a MetaQ log."""

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return "metaq"

    def schema(self) -> StructType:
        """All columns; `.schema("offset bigint, value binary")` of a read asks for fewer."""
        include = self.options.get("includeHeaders", "false").strip().lower() == "true"
        return schema_of(include_headers=include)

    @_ToldByItsText()
    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch read."""
        return _BatchReader(options_of(self.options, streaming=False), Columns(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """A streaming read. Its options are checked when it is first called.

        Spark hides an error raised here behind one of its own: it stops a reader that it does not have.
        """
        return _StreamReader(self.options, schema)


class _BatchReader(DataSourceReader):
    """Has no pushFilters: a DataFrame's scans share what the first of them plans, or the last that pushed filters."""

    def __init__(self, options: ReadOptions, columns: Columns) -> None:
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


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        self._given = given
        self._schema = schema
        self._opened: LogAccess | None = None
        self._target: dict[LogQueue, int] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    @cached_property
    def _options(self) -> ReadOptions:
        return options_of(self._given, streaming=True)

    @cached_property
    def _columns(self) -> Columns:
        return Columns(self._schema)

    @property
    def _log(self) -> LogAccess:
        if self._opened is None:
            self._opened = open_log(self._options.where)
        return self._opened

    @property
    def _planner(self) -> Planner:
        return Planner(self._log, self._options)

    @_ToldByItsText()
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return self._planner.initial().to_json()

    @_ToldByItsText()
    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """The first call of Spark, so that wrong columns are reported at once, too."""
        assert self._columns
        limit = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    @_ToldByItsText()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._target = self._planner.ends()

    @_ToldByItsText()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        count_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        position = Position.of_json(start)
        return self._planner.latest(position, count_max=count_max, target=self._target).to_json()

    @_ToldByItsText()
    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        return Position(self._log.identity(), self._planner.ends()).to_json()

    @_ToldByItsText()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        first, last = Position.of_json(start), Position.of_json(end)
        self._planner.require_same_log(last)
        begins = begins_between(first, last)
        parts = [Part(queue, begins[queue], at) for queue, at in last.offsets.items()]
        return _tasks(parts, self._options, self._log)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with _ToldByItsText():
            yield from read_task(partition, self._options, self._columns)

    def stop(self) -> None:
        if self._opened is not None:
            self._opened.close()


def _tasks(parts: Iterable[Part], options: ReadOptions, log: LogAccess) -> list[InputPartition]:
    identity = log.identity()
    cut = cut_into_tasks(parts, min_tasks=options.min_partitions, size_max=options.max_records_per_partition)
    return [Task(parts, identity) for parts in cut]
