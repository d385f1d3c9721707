"""One `load()` used many times: any query on it equals the same query on its rows in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr

from tests.metaq.logs import batch
from txmsg.metaq.store.log import Log

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]  # a JVM starts

_COLUMNS = ["topic", "queue", "offset", "stored_at", "value"]
_ROW = ["topic", "queue", "offset"]
_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
_MINUTE_US = 60 * 1_000_000
_CONDITIONS = (
    "queue = 1",
    "queue <=> 2",
    "queue in (0, 3)",
    "not queue = 1",
    "queue > 1 and offset < 9",
    "topic = 'a'",
    "topic like 'b%'",
    "offset = 7",
    "offset in (3, 11)",
    "offset >= 8",
    "offset < 4",
    "queue = 3 or offset >= 10",
    "topic = 'a' and (queue = 0 or offset = 2)",
    "stored_at >= '1970-01-01 00:02:00'",
    "stored_at < '1970-01-01 00:01:30'",
    "stored_at = '1970-01-01 00:01:00'",
    "value is not null",
    "length(value) > 5",
)
Frames = tuple[DataFrame, DataFrame]
"""Of the log, and the same in memory."""


def load(spark: SparkSession, root: Path) -> Frames:
    """Write and load two topics of four queues with three batches of five messages each, a minute apart."""
    with Log(root) as log:
        for topic in ("a", "bc"):
            for queue in range(4):
                for number in range(3):
                    log.append([batch(topic, queue, 5 * number, 5, at_us=number * _MINUTE_US)])
    source = (
        spark.read.format("metaq")
        .option("topics", "*")
        .schema("topic string, queue int, offset bigint, stored_at timestamp, value binary")
    )
    frame = source.load(str(root))
    known = spark.read.format("metaq").option("topics", "*").load(str(root)).select(*_COLUMNS)  # a load of its own
    return frame, spark.createDataFrame(known.collect(), known.schema)


def combined(random: Random, loaded: Frames, steps: int) -> tuple[str, Frames]:
    """Apply so many random steps to a load, the same on both sides; return the results and a description."""
    if not steps:
        return "all", loaded
    said, frames = combined(random, loaded, steps - 1)
    kind = random.choice(["where", "where", "union", "join", "semi", "cache"])

    def made(make: Callable[[DataFrame, DataFrame], DataFrame], others: Frames = loaded) -> Frames:
        return make(frames[0], others[0]), make(frames[1], others[1])

    if kind == "where":
        condition = random.choice(_CONDITIONS)
        return f"{said} where {condition}", made(lambda frame, _: frame.where(condition))
    if kind == "cache":
        return f"{said} cached", made(lambda frame, _: frame.cache())
    other_said, others = combined(random, loaded, random.randrange(min(steps, 3)))
    if kind == "union":
        return f"({said}) union ({other_said})", made(lambda one, other: one.unionByName(other), others)
    if kind == "semi":
        return f"({said}) semi ({other_said})", made(lambda one, other: one.join(other, _ROW, "left_semi"), others)
    return f"({said}) join ({other_said})", made(
        lambda one, other: one.join(other.select(*_ROW, expr("queue as joined")), _ROW).drop("joined"), others
    )


def rows(frame: DataFrame) -> Counter[tuple[object, ...]]:
    """Return each row with its number of occurrences."""
    return Counter((row.topic, row.queue, row.offset, row.stored_at, bytes(row.value)) for row in frame.collect())


@pytest.mark.parametrize("pushdown", ["false", "true"])
def test_reused_dataframe_has_all_its_rows(spark: SparkSession, tmp_path: Path, pushdown: str) -> None:
    """Also if an application makes Spark push filters to its sources."""
    spark.conf.set(_PUSHDOWN, pushdown)
    frame, _ = load(spark, tmp_path)
    assert frame.where("queue = 3").count() == 30
    assert frame.count() == 120
    first, last = frame.where("queue = 0"), frame.where("offset >= 10")
    assert first.union(last).count() == 30 + 40
    assert first.join(last, _ROW).count() == 10
    assert frame.where("queue = 3 or offset >= 14").count() == 30 + 6
    spark.conf.unset(_PUSHDOWN)


@pytest.mark.parametrize("seed", [0, 2, 3])
def test_random_queries_equal_those_on_rows_in_memory(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    loaded = load(spark, tmp_path)
    compared: list[str] = []
    for _ in range(4):
        said, (of_log, in_memory) = combined(random, loaded, random.randrange(5))
        compared.append(said)
        assert rows(of_log) == rows(in_memory), "\n".join(["differ in the last of:", *compared])
    spark.catalog.clearCache()
