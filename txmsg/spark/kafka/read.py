"""Reads a log in Kafka by Spark's own Kafka source, with the columns of the format `metaq`.

Options give the begin and the end of a read in offsets of queues. Spark's source, and with it the checkpoint of a
stream, has offsets of partitions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from txmsg.errors import MisuseError, OffsetOutOfRange, StorageError
from txmsg.metaq.interface import LogQueue
from txmsg.metaq.kafka.kafka_log import KafkaLog
from txmsg.metaq.kafka.location import parse_address, properties_file, read_properties
from txmsg.metaq.kafka.names import kafka_name
from txmsg.spark.columns import schema_of
from txmsg.spark.kafka.columns import OWN, expressions, readable
from txmsg.spark.kafka.properties import java_properties
from txmsg.spark.kafka.topics import expression_of
from txmsg.spark.options import options_of
from txmsg.spark.planner import Planner
from txmsg.spark.sessions import KAFKA_PACKAGE
from txmsg.wire.start import Start

_JAVA: Final = "kafka."
"""The prefix of options that are properties of Kafka's Java client."""
_ENDS: Final = {"earliest": -2, "latest": -1}
"""The numbers that stand for both ends in the offsets of Spark's source."""
_ANSWER_S_MAX: Final = 60.0
_FIXED: Final = {
    "kafka.allow.auto.create.topics": "false",  # else a topic that was deleted comes back
    "kafka.isolation.level": "read_committed",
}
_OURS: Final = frozenset({"kafka.bootstrap.servers", *_FIXED})


class KafkaRead:
    """A read of a log in Kafka.

    given: the options of the format `metaq`, and properties for Kafka's Java client under their names after "kafka.".
    config: the file of librdkafka's properties of the connection.
    Raises InvalidName, and MisuseError for options that Kafka does not support.
    """

    def __init__(self, where: str, given: Mapping[str, str], *, config: Path | None, streaming: bool) -> None:
        self._address = parse_address(where)
        java = {name: value for name, value in given.items() if name.startswith(_JAVA)}
        if ours := sorted(_OURS & java.keys()):
            raise MisuseError(f"option {ours[0]} is set by txmsg itself: leave it out")
        self._properties = read_properties(properties_file(config))
        translated = {_JAVA + name: value for name, value in java_properties(self._properties).items()}
        self._java = translated | java
        rest = {name: given[name] for name in given.keys() - java.keys()}
        self._options = options_of(rest, streaming=streaming, kafka=where)
        if self._options.body_keys:
            raise MisuseError(
                "option bodyKeys is for logs of txmsg's own: read erasable topics in Kafka with an application, whose "
                "encryption=BodyKeys(...) decrypts their bodies"
            )
        self._streaming = streaming

    def load(self, spark: SparkSession, schema: StructType | None) -> DataFrame:
        """Return these columns of the messages (None: all). The messages of a batch are fixed from now on.

        Raises StorageError if Spark has no source for Kafka; for a batch also the errors of `open_log` and the planner.
        """
        if schema is None:
            schema = schema_of(include_headers=self._options.include_headers)
        places = self._of_stream() if self._streaming else self._of_batch()
        if not places:
            return spark.createDataFrame([], schema)
        reader: Any = spark.readStream if self._streaming else spark.read
        options = {**self._limits(), **places, "includeHeaders": "true"}
        connection = {"kafka.bootstrap.servers": ",".join(self._address.servers)}
        try:
            records = reader.format("kafka").options(**self._java, **connection, **_FIXED, **options).load()
        except AnalysisException as exc:
            if "find data source: kafka" not in str(exc):
                raise
            raise StorageError(
                "this Spark has no source for Kafka: make the session by txmsg.spark.session(kafka=True), which gets "
                "it from Maven's repositories, or session(kafka=DIRECTORY) with its jars; for other sessions set "
                f"spark.jars.packages={KAFKA_PACKAGE}"
            ) from exc
        made = expressions(self._address.prefix)
        records = records.selectExpr("*", OWN)
        if not self._options.fail_on_data_loss:
            records = records.where(readable())
        frame: DataFrame = records.selectExpr(*(f"{made[name]} as `{name}`" for name in schema.names))
        return frame

    def _limits(self) -> dict[str, str]:
        options = self._options
        found = {
            "failOnDataLoss": str(options.fail_on_data_loss).lower(),
            "maxRecordsPerPartition": str(options.max_records_per_partition),
        }
        if options.min_partitions > 1:
            found["minPartitions"] = str(options.min_partitions)
        if options.max_offsets_per_trigger is not None:
            found["maxOffsetsPerTrigger"] = str(options.max_offsets_per_trigger)
        return found

    def _of_stream(self) -> dict[str, str]:
        """Return options with a pattern for topics, which later ones may match, and the starting offsets in present
        ones.
        """
        start = self._options.start
        topics = {"subscribePattern": expression_of(self._options.topics, self._address.prefix)}
        if isinstance(start, Start) and start.kind in _ENDS:
            return topics | {"startingOffsets": start.kind}
        with self._opened() as log:
            starts = Planner(log, self._options).starts()
            # Not startingTimestamp: Kafka finds markers of transactions, too, whose time is when they were written.
            if isinstance(start, Start) and start.kind == "time":
                exact = log.offsets_at(starts, start.value)
            else:
                exact = {queue: each.value for queue, each in starts.items() if each.kind == "offset"}
            places = _begins(log, exact)
        begins = {queue: places[queue] if queue in exact else _ENDS[each.kind] for queue, each in starts.items()}
        return topics | {"startingOffsets": self._json(begins)}

    def _of_batch(self) -> dict[str, str]:
        """Return options with exact offsets, so that a DataFrame has the same messages at each use; empty for no
        messages.
        """
        with self._opened() as log:
            parts = [part for part in Planner(log, self._options).parts() if part.size > 0]
            begins = _kept(log, {part.queue: part.begin for part in parts})
            ends = _kept(log, {part.queue: part.end for part in parts})
        if not parts:
            return {}
        partitions: dict[str, list[int]] = {}
        for queue in begins:
            partitions.setdefault(self._name(queue), []).append(queue.queue)
        return {
            "assign": json.dumps(partitions),
            "startingOffsets": self._json(begins),
            "endingOffsets": self._json(ends),
        }

    def _opened(self) -> KafkaLog:
        return KafkaLog(self._address, self._properties, timeout_s=_ANSWER_S_MAX)

    def _json(self, offsets: Mapping[LogQueue, int]) -> str:
        found: dict[str, dict[str, int]] = {}
        for queue, offset in offsets.items():
            found.setdefault(self._name(queue), {})[str(queue.queue)] = offset
        return json.dumps(found)

    def _name(self, queue: LogQueue) -> str:
        return kafka_name(queue.topic, self._address.prefix)


def _kept(log: KafkaLog, offsets: Mapping[LogQueue, int]) -> dict[LogQueue, int]:
    """Return the offsets of partitions for offsets of queues. Raises OffsetOutOfRange."""
    found: dict[LogQueue, int] = {}
    for queue, place in log.partition_offsets(offsets).items():
        if isinstance(place, OffsetOutOfRange):
            raise place
        found[queue] = place
    return found


def _begins(log: KafkaLog, offsets: Mapping[LogQueue, int]) -> dict[LogQueue, int]:
    """Return the offsets of partitions at which a new stream begins; they may be outside of the kept ones.

    Spark's source is given them so that it reports the loss when it begins there. A stream with a checkpoint does not
    begin there, and later expiry does not concern it.
    """
    found: dict[LogQueue, int] = {}
    for queue, place in log.partition_offsets(offsets).items():
        if not isinstance(place, OffsetOutOfRange):
            found[queue] = place
        elif offsets[queue] < place.begin:
            found[queue] = max(0, log.partition_begins([queue])[queue] - 1)
        else:
            found[queue] = _kept(log, {queue: place.end})[queue] + offsets[queue] - place.end
    return found
