"""The Spark job of the trade dashboard: reads trades from MetaQ as they come, and adds each batch to the figures once.

    python -m examples.trade_dashboard.job --metaq ./metaq --results postgresql://user@host/dashboard --checkpoint ./job

The log may be in a directory, on a server, or in Kafka: the job is the same.

A batch is counted and written in one transaction, which also notes its number: a batch that is run again after a crash
adds nothing twice. Prints a line when it reads; SIGTERM and Ctrl-C end it in order. A query that has failed for want of
time is started again from its checkpoint (restarts.py); any other error ends the job.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psycopg
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import current_timestamp, expr
from pyspark.sql.streaming.query import StreamingQuery

from txmsg.message import Message
from txmsg.metaq import Log, LogProducer
from txmsg.spark import session, stream_log, write_idempotent

from . import figures, offsets
from .counting import BODY_SIZE_BYTES_MAX, count
from .figures import Deltas
from .offsets import Span
from .restarts import Restarts

TOPIC = "trade.order"
QUERY = "trade_dashboard"
SETTINGS = {
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",  # else Spark compiles the query of each batch again
}
"""For small batches on a machine that has other work: little memory, and little compiling."""
TRIGGER_S = 0.1
_BATCH_MAX = 20_000
_WARM_UP_BATCHES = 3
_COLUMNS = ("queue", "offset", "value", "stored_at")


def start(spark: SparkSession, *, metaq: str, results: str, checkpoint: str, trigger_s: float = 0.0) -> StreamingQuery:
    """Starts the query. Its tables are made first.

    metaq: a log's directory, HOST:PORT of its server, or kafka://HOST:PORT. results: the database of the figures.
    trigger_s: a batch begins no sooner than this after the one before; 0 for as soon as there is something to read.
    """
    with psycopg.connect(results) as connection:
        figures.create_tables(connection)
        offsets.create_table(connection)
    sink = write_idempotent(results, query=QUERY, collect=_counted, write=_write)
    writer = _read(spark, metaq).writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint)
    return writer.queryName(QUERY).trigger(processingTime=f"{round(trigger_s * 1000)} milliseconds").start()


def warm_up(spark: SparkSession) -> None:
    """Counts a few messages of a log of its own, for nothing: a JVM takes some ten seconds for its first batch."""
    with TemporaryDirectory(prefix="txmsg-") as directory, Log(Path(directory) / "log") as log:
        producer = LogProducer(log)
        messages = _read(spark, str(log.root))
        writer = messages.writeStream.foreachBatch(_count_for_nothing)
        query = writer.option("checkpointLocation", f"{directory}/checkpoint").start()
        for _ in range(_WARM_UP_BATCHES):
            producer.send(Message(TOPIC, b"{}"))
            query.processAllAvailable()
        query.stop()


def _read(spark: SparkSession, metaq: str) -> DataFrame:
    messages = stream_log(
        spark,
        metaq,
        columns=_COLUMNS,
        topics=TOPIC,
        startingOffsets="earliest",
        maxOffsetsPerTrigger=_BATCH_MAX,
        prefetch=True,
    )
    # Bodies are cut short before they leave Spark. current_timestamp() is when Spark planned the batch.
    short = expr(f"substring(value, 1, {BODY_SIZE_BYTES_MAX + 1}) as value")
    return messages.select("queue", "offset", short, "stored_at", current_timestamp().alias("planned_at"))


def _count_for_nothing(batch: DataFrame, batch_id: int) -> None:
    _counted(batch, batch_id)


def _counted(batch: DataFrame, batch_id: int) -> tuple[Deltas, Mapping[int, Span]]:
    """What a batch adds. Spark reads it; a process of its own to count it would cost more than the counting."""
    started_at = datetime.now(UTC)
    messages = batch.toArrow()
    found = count(messages)
    planned_at = messages["planned_at"][0].as_py() if messages.num_rows else started_at
    waits = found.waits(planned_at=planned_at, started_at=started_at, read_at=datetime.now(UTC))
    return found.deltas(batch_id, started_at, waits), found.spans


def _write(connection: psycopg.Connection[Any], found: tuple[Deltas, Mapping[int, Span]]) -> None:
    deltas, spans = found
    if not deltas.messages:  # the first batch of a query that finds nothing yet: there are no figures to tell of
        return
    offsets.advance(connection, spans)
    figures.add(connection, deltas)


def main() -> int:
    """Runs the job until it is told to stop, which gives 0, or until it cannot go on, which gives 1."""
    options = _options()
    ending = _Ending()
    signal.signal(signal.SIGTERM, ending.tell)
    is_in_kafka = options.metaq.startswith("kafka://")
    kafka = (options.kafka_jars or True) if is_in_kafka else False
    spark = session("trade_dashboard", master="local[2,4]", kafka=kafka, config=SETTINGS)
    spark.sparkContext.setLogLevel("ERROR")
    signal.signal(signal.SIGINT, ending.tell)  # Spark has set a handler of its own
    try:
        failed = _run(spark, options, ending)
    finally:
        spark.stop()
    if failed is not None:
        print(f"the query has ended: {failed}", file=sys.stderr)
        return 1
    return 0


class _Ending:
    """Wakes the main thread when the job is told to stop, or its query has ended."""

    def __init__(self) -> None:
        self.is_told = False
        self._woken = threading.Event()

    def tell(self, *_: object) -> None:
        """The job is to stop."""
        self.is_told = True
        self._woken.set()

    def wait_for(self, query: StreamingQuery) -> None:
        """Returns when the query has ended, or the job is told to stop."""
        self._woken.clear()
        threading.Thread(target=self._wake_at_end, args=(query,), daemon=True).start()
        if not self.is_told:  # before the event was cleared
            self._woken.wait()

    def pause(self, timeout_s: float) -> None:
        """Returns after this time, or when the job is told to stop."""
        self._woken.clear()
        if not self.is_told:
            self._woken.wait(timeout_s)

    def _wake_at_end(self, query: StreamingQuery) -> None:
        try:
            query.awaitTermination()
        except StreamingQueryException:
            pass  # main asks for it, and tells it
        finally:  # also when the JVM is gone, and with it the query
            self._woken.set()


def _run(spark: SparkSession, options: argparse.Namespace, ending: _Ending) -> str | None:
    """Counts until the job is told to stop, or cannot go on: why."""
    restarts = Restarts()
    while not ending.is_told:
        try:
            _count_until_it_ends(spark, options, ending)
            break
        except (PySparkException, Py4JJavaError) as exc:
            wait_s = restarts.wait_s(str(exc), time.monotonic())
            if wait_s is None:
                return str(exc)
            print(f"the query is started again in {wait_s:g} s, for it has ended: {exc}", file=sys.stderr, flush=True)
            ending.pause(wait_s)
    return None


def _count_until_it_ends(spark: SparkSession, options: argparse.Namespace, ending: _Ending) -> None:
    """Returns when the job is told to stop. Raises what has ended the query."""
    if not Path(options.checkpoint).exists():  # else trades are waiting, and warm it up as well
        warm_up(spark)
    query = start(
        spark,
        metaq=options.metaq,
        results=options.results,
        checkpoint=options.checkpoint,
        trigger_s=options.trigger,
    )
    print(f"counting {TOPIC} of {options.metaq}", flush=True)
    ending.wait_for(query)
    failed = query.exception()
    query.stop()
    if failed is not None:
        raise failed


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m examples.trade_dashboard.job",
        description="Counts the trades of a MetaQ log into the figures of the trade dashboard, until it is stopped.",
        epilog=f"Prints `counting {TOPIC} of WHERE` when it reads. Start it again with the same checkpoint after a "
        "crash: it goes on where it was, and counts nothing twice. A query whose Python process did not start in time, "
        "as on a busy machine, is started again by itself. SIGTERM and Ctrl-C end it in order.",
    )
    parser.add_argument(
        "--metaq",
        required=True,
        metavar="DIR|HOST:PORT|kafka://HOST:PORT",
        help="the log: its directory, the address of its server, or a Kafka with the prefix of its topics",
    )
    parser.add_argument(
        "--kafka-jars",
        metavar="DIR",
        help="jars of Spark's source for Kafka (default: Spark gets them from Maven's repositories)",
    )
    parser.add_argument(
        "--results", required=True, metavar="URL", help="the PostgreSQL database of the figures; tables are made there"
    )
    parser.add_argument(
        "--checkpoint", required=True, metavar="DIR", help="where Spark keeps how far it is; belongs to these results"
    )
    parser.add_argument(
        "--trigger",
        type=float,
        default=TRIGGER_S,
        metavar="SECONDS",
        help="a batch begins no sooner than so long after the one before (default %(default)s; 0: at once)",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
