"""Rows per second of Spark reading a log as a batch, beside the same rows from Parquet in the same run.

5 million messages of 100 bytes with keys and tags, in batches of 100 and 8 queues. By turns: all columns into Spark's
sink that writes nothing, and two columns. The Parquet files (snappy, Spark's default) are written by Spark from the
log. In the end both give the same count and sums as the log was filled with; the exit status is 1 if not.

    python -m benchmarks.spark_read [--quick] [--json] [--messages N] [--turns N]
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from benchmarks.surroundings import parser_of, progress_of
from benchmarks.turns import Compared, by_turns
from txmsg.message import new_transaction_id_bytes
from txmsg.metaq.format.frame import FrameColumns, encode
from txmsg.metaq.store.log import Append, Log, LogConfig
from txmsg.metaq.store.topics import Flush, TopicSettings
from txmsg.spark import session

MESSAGES, MESSAGES_QUICK = 5_000_000, 200_000
TURNS, TURNS_QUICK = 5, 1
QUEUES = 8
BATCH = 100
BODY_SIZE_BYTES = 100
NARROW = "offset bigint, value binary"
FIRST_STORED_AT_US = 1_793_980_800_000_000


def fill(root: Path, count: int) -> None:
    """Append batches that differ as real messages do: ids, keys, times."""
    with Log(root, LogConfig(topic=TopicSettings(flush=Flush.TIMED))) as log:
        appends = []
        for number in range(count // BATCH):
            base, queue = number // QUEUES * BATCH, number % QUEUES
            stored_at_us = [FIRST_STORED_AT_US + (number * BATCH + each) * 1000 for each in range(BATCH)]
            columns = FrameColumns(
                body=[b"%0*d" % (BODY_SIZE_BYTES, base + each) for each in range(BATCH)],
                stored_at_us=stored_at_us,
                born_at_us=stored_at_us,
                transaction_id=b"".join(new_transaction_id_bytes() for _ in range(BATCH)),
                key=[f"order-{number}-{each}" for each in range(BATCH)],
                tag=["created", "paid"] * (BATCH // 2),
            )
            appends.append(Append("trade", queue, encode(columns), base))
            if len(appends) == 100 or number == count // BATCH - 1:
                log.append(appends)
                appends = []


def rate_of(frame: DataFrame, count: int) -> float:
    """Return rows per second into a sink that writes nothing, with every column read."""
    began_at = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return count / (time.perf_counter() - began_at)


def sums(frame: DataFrame) -> tuple[int, int, int]:
    """Return sums on which both must agree."""
    [row] = frame.selectExpr("count(*)", "sum(offset)", "sum(cast(cast(value as string) as bigint))").collect()
    return tuple(row)


def measure(spark: SparkSession, directory: Path, count: int, turns: int) -> tuple[dict[str, Compared], list[str]]:
    """Return the rates by kind of read, and differences."""
    log, parquet = str(directory / "log"), str(directory / "parquet")

    def of_log(schema: str | None) -> DataFrame:
        reader = spark.read.schema(schema) if schema else spark.read
        return reader.format("metaq").option("topics", "trade").load(log)

    def work(whole: Callable[[], DataFrame], narrow: Callable[[], DataFrame]) -> dict[str, float]:
        found = {"all_columns": rate_of(whole(), count), "two_columns": rate_of(narrow(), count)}
        step()
        return found

    def read_log() -> dict[str, float]:
        return work(lambda: of_log(None), lambda: of_log(NARROW))

    def read_parquet() -> dict[str, float]:
        return work(lambda: spark.read.parquet(parquet), lambda: spark.read.schema(NARROW).parquet(parquet))

    rates: dict[str, Compared] = {}
    with progress_of("spark_read", 2 * turns + 3) as step:
        fill(directory / "log", count)
        step()
        of_log(None).write.parquet(parquet)
        step()
        for _ in range(turns):
            by_turns(read_log, read_parquet, rates)
        per_queue = count // QUEUES
        total = QUEUES * per_queue * (per_queue - 1) // 2
        expected = (count, total, total)
        found = {"log": sums(of_log(NARROW)), "Parquet": sums(spark.read.parquet(parquet))}
        step()
    return rates, [f"{name}: {got}, not {expected}" for name, got in found.items() if got != expected]


def main() -> int:
    """Measure, print, and compare the rows read."""
    parser = parser_of(__doc__, "200,000 messages, one turn")
    parser.add_argument("--messages", type=int, help=f"how many (default {MESSAGES:,})")
    parser.add_argument("--turns", type=int, help=f"how often (default {TURNS})")
    options = parser.parse_args()
    count = options.messages or (MESSAGES_QUICK if options.quick else MESSAGES)
    count -= count % (QUEUES * BATCH)
    turns = options.turns or (TURNS_QUICK if options.quick else TURNS)
    with tempfile.TemporaryDirectory() as directory:
        spark = session("spark_read", config={"spark.driver.memory": "1g"})
        rates, wrong = measure(spark, Path(directory), count, turns)
        spark.stop()
    for name, each in rates.items():
        print(
            f"{name.replace('_', ' ')}: {each.rate:,.0f} rows/s; Parquet {each.reference:,.0f} rows/s; "
            f"ratio {each.ratio:.2f}"
        )
    if options.json:
        figures: dict[str, object] = {"messages": count, "wrong": len(wrong)}
        for name, each in rates.items():
            figures |= each.figures(name)
        print(json.dumps(figures))
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
