"""Adds up the orders of the mirror in a database: python -m examples.rocketmq.job LOG DATABASE CHECKPOINT."""

from __future__ import annotations

import sys
import time
from typing import Any

import psycopg
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row
from pyspark.sql.functions import col, count, get_json_object
from pyspark.sql.functions import sum as sum_of

from txmsg.spark import session, stream_log, write_idempotent

from ..trade_dashboard.restarts import Restarts
from ..trade_dashboard.running import SETTINGS
from . import TOPIC


def add_up(batch: DataFrame, _: int) -> Row:
    """Return number and sum of the orders of a batch."""
    cents = get_json_object(col("value").cast("string"), "$.cents").cast("bigint")
    found = batch.agg(count("*").alias("orders"), sum_of(cents).alias("cents")).first()
    assert found is not None, "an aggregate has one row"
    return found


def add(connection: psycopg.Connection[Any], found: Row) -> None:
    """Add a batch to the totals, in the transaction that records the batch."""
    connection.execute("create table if not exists totals (orders bigint, cents bigint)")
    connection.execute("insert into totals values (%s, %s)", (found.orders, found.cents or 0))


def main(log: str, database: str, checkpoint: str) -> None:
    """Run until killed. A query that failed on a busy machine continues from its checkpoint."""
    spark = session("orders", config=SETTINGS)
    sink = write_idempotent(database, query="orders", collect=add_up, write=add)
    restarts = Restarts()
    print("adding up", flush=True)
    while True:
        try:
            orders = stream_log(spark, log, topics=TOPIC, startingOffsets="earliest")
            writer = orders.writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint)
            writer.start().awaitTermination()
        except PySparkException as exc:
            wait_s = restarts.wait_s(str(exc), time.monotonic())
            if wait_s is None:
                raise
            time.sleep(wait_s)


if __name__ == "__main__":
    main(*sys.argv[1:])
