"""Messages of a log as a DataFrame, wherever the log is: in a directory, on a server, or in Kafka."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from pyspark.sql import DataFrame, SparkSession

from txmsg.errors import MisuseError
from txmsg.metaq.kafka.location import is_kafka
from txmsg.metaq.location import is_address
from txmsg.spark.columns import chosen

Option: TypeAlias = str | int | bool


def read_log(
    spark: SparkSession,
    log: str | os.PathLike[str],
    *,
    columns: Sequence[str] | None = None,
    kafka_config: str | os.PathLike[str] | None = None,
    **options: Option,
) -> DataFrame:
    """Return the messages of a log: in a directory, at "HOST:PORT" or "unix:PATH" of its server, or at
    "kafka://HOST:PORT".

    columns: names of columns. Default: all; `headers` with the option includeHeaders. kafka_config: the file of Kafka's
    properties; default that of the environment. options: those of the format "metaq", with the same meaning wherever
    the log is. For Kafka also properties of its Java client: `**{"kafka.NAME": VALUE}`.

    Raises MisuseError, InvalidName; for a log in Kafka also StorageError if Spark has no source for it, and errors of
    the range, which is planned at once.
    """
    return _frame(spark, log, columns, kafka_config, options, streaming=False)


def stream_log(
    spark: SparkSession,
    log: str | os.PathLike[str],
    *,
    columns: Sequence[str] | None = None,
    kafka_config: str | os.PathLike[str] | None = None,
    **options: Option,
) -> DataFrame:
    """Return the messages of a log as a stream, from `startingOffsets` on (default: "latest"). Arguments as for
    `read_log`.

    For a log in Kafka, Spark's source reads each batch, so the option `prefetch` has no effect.
    """
    return _frame(spark, log, columns, kafka_config, options, streaming=True)


def _frame(
    spark: SparkSession,
    log: str | os.PathLike[str],
    columns: Sequence[str] | None,
    kafka_config: str | os.PathLike[str] | None,
    options: dict[str, Option],
    *,
    streaming: bool,
) -> DataFrame:
    given = {name: str(value) for name, value in options.items()}
    where = os.fspath(log)
    wanted = None if columns is None else chosen(columns)
    if is_kafka(where):
        from txmsg.spark.kafka.read import KafkaRead  # loads Kafka's client

        read = KafkaRead(where, given, config=None if kafka_config is None else Path(kafka_config), streaming=streaming)
        return read.load(spark, wanted)
    if kafka_config is not None:
        raise MisuseError(f"kafka_config is for a log at kafka://HOST:PORT, and {where} is none: leave it out")
    reader: Any = spark.readStream if streaming else spark.read
    if wanted is not None:
        reader = reader.schema(wanted)
    place = {"server" if is_address(log) else "path": where}
    frame: DataFrame = reader.format("metaq").options(**given, **place).load()
    return frame
