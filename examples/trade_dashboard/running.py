"""Runs a Spark query over the trades of MetaQ until it is stopped; shared by the jobs of the trade dashboard.

Prints a line when it reads; SIGTERM and Ctrl-C end it in order. A query that has failed for want of time is started
again from its checkpoint (restarts.py); any other error ends the job.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import current_timestamp, expr
from pyspark.sql.streaming.query import StreamingQuery

from txmsg.message import Message
from txmsg.metaq import Log, LogProducer
from txmsg.spark import session, stream_log

from .counting import BODY_SIZE_BYTES_MAX, count
from .restarts import Restarts

TOPIC = "trade.order"
SETTINGS = {
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",  # else Spark compiles the query of each batch again
}
"""For small batches on a busy machine: little memory, and little compiling."""
TRIGGER_S = 0.1
_BATCH_MAX = 20_000
_WARM_UP_BATCHES = 3
_COLUMNS = ("queue", "offset", "value", "stored_at")

Start = Callable[..., StreamingQuery]
"""`start` of job.py, or one with the same arguments."""


def run(start: Start, prog: str, description: str) -> int:
    """Run a job until it is stopped, which returns 0, or until it fails, which returns 1.

    start: starts its query. prog, description: as its help shows them.
    """
    options = _options(prog, description)
    ending = _Ending()
    signal.signal(signal.SIGTERM, ending.tell)
    is_in_kafka = options.metaq.startswith("kafka://")
    kafka = (options.kafka_jars or True) if is_in_kafka else False
    spark = session("trade_dashboard", master="local[2,4]", kafka=kafka, config=SETTINGS)
    spark.sparkContext.setLogLevel("ERROR")
    signal.signal(signal.SIGINT, ending.tell)  # Spark has set a handler of its own
    try:
        failed = _run(start, spark, options, ending)
    finally:
        spark.stop()
    if failed is not None:
        print(f"the query has ended: {failed}", file=sys.stderr)
        return 1
    return 0


# ---- reading


def read_trades(spark: SparkSession, metaq: str) -> DataFrame:
    """Return the stream of trades, with the time at which Spark planned the batch."""
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


def start_query(
    spark: SparkSession,
    sink: Callable[[DataFrame, int], None],
    *,
    query: str,
    metaq: str,
    checkpoint: str,
    trigger_s: float,
) -> StreamingQuery:
    """Start to pass batches of trades to this sink, under this name."""
    writer = read_trades(spark, metaq).writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint)
    return writer.queryName(query).trigger(processingTime=f"{round(trigger_s * 1000)} milliseconds").start()


def warm_up(spark: SparkSession) -> None:
    """Count a few messages of a temporary log: a JVM takes some ten seconds for its first batch."""
    with TemporaryDirectory(prefix="txmsg-") as directory, Log(Path(directory) / "log") as log:
        producer = LogProducer(log)
        messages = read_trades(spark, str(log.root))
        writer = messages.writeStream.foreachBatch(_count_for_nothing)
        query = writer.option("checkpointLocation", f"{directory}/checkpoint").start()
        for _ in range(_WARM_UP_BATCHES):
            producer.send(Message(TOPIC, b"{}"))
            query.processAllAvailable()
        query.stop()


def _count_for_nothing(batch: DataFrame, _batch_id: int) -> None:
    count(batch.toArrow())


# ---- until it ends


class _Ending:
    """Wakes the main thread when the job is stopped, or its query has ended."""

    def __init__(self) -> None:
        self.is_told = False
        self._woken = threading.Event()

    def tell(self, *_: object) -> None:
        """Ask the job to stop."""
        self.is_told = True
        self._woken.set()

    def wait_for(self, query: StreamingQuery) -> None:
        """Return once the query has ended, or the job is stopped."""
        self._woken.clear()
        threading.Thread(target=self._wake_at_end, args=(query,), daemon=True).start()
        if not self.is_told:  # before the event was cleared
            self._woken.wait()

    def pause(self, timeout_s: float) -> None:
        """Return after this time, or once the job is stopped."""
        self._woken.clear()
        if not self.is_told:
            self._woken.wait(timeout_s)

    def _wake_at_end(self, query: StreamingQuery) -> None:
        try:
            query.awaitTermination()
        except StreamingQueryException:
            pass  # the main thread reads the error from the query
        finally:  # also when the JVM is gone, and with it the query
            self._woken.set()


def _run(start: Start, spark: SparkSession, options: argparse.Namespace, ending: _Ending) -> str | None:
    """Count until the job is stopped, or fails; return the error."""
    restarts = Restarts()
    while not ending.is_told:
        try:
            _count_until_it_ends(start, spark, options, ending)
            break
        except (PySparkException, Py4JJavaError) as exc:
            wait_s = restarts.wait_s(str(exc), time.monotonic())
            if wait_s is None:
                return str(exc)
            print(f"the query is started again in {wait_s:g} s, for it has ended: {exc}", file=sys.stderr, flush=True)
            ending.pause(wait_s)
    return None


def _count_until_it_ends(start: Start, spark: SparkSession, options: argparse.Namespace, ending: _Ending) -> None:
    """Return once the job is stopped. Raises the error that ended the query."""
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


def _options(prog: str, description: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=prog,
        description=description,
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
