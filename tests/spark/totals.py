"""A stream that counts its messages into PostgreSQL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
from pyspark.sql import DataFrame, Row, SparkSession

from txmsg.spark import write_idempotent

CREATE = (
    "create table if not exists figure (topic text, queue int, count bigint, total bigint, primary key (topic, queue))"
)
_ADD = """
insert into figure values (%s, %s, %s, %s)
on conflict (topic, queue) do update set count = figure.count + excluded.count, total = figure.total + excluded.total
"""


def start(spark: SparkSession, log: Path, checkpoint: Path, url: str, **options: str) -> Any:
    """Start a stream over topics t*; its writer counts messages and adds up their offsets."""
    source = spark.readStream.format("metaq").option("topics", "t*").option("startingOffsets", "earliest")
    return source.options(path=str(log), **options).load().writeStream.option("checkpointLocation", str(checkpoint))


def counted(url: str) -> Any:
    """Add a batch to the counts."""
    return write_idempotent(url, query="figures", collect=_collect, write=_write)


def _collect(batch: DataFrame, _batch_id: int) -> list[Row]:
    return batch.groupBy("topic", "queue").agg({"offset": "sum", "*": "count"}).collect()


def _write(connection: psycopg.Connection[Any], rows: list[Row]) -> None:
    connection.execute(CREATE)
    for row in rows:
        connection.execute(_ADD, (row["topic"], row["queue"], row["count(1)"], row["sum(offset)"]))


def figures(url: str) -> dict[tuple[str, int], tuple[int, int]]:
    """Return the number of messages of each queue, and the sum of their offsets."""
    with psycopg.connect(url) as connection:
        found = connection.execute("select topic, queue, count, total from figure").fetchall()
    return {(topic, queue): (count, total) for topic, queue, count, total in found}
