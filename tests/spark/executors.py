"""A program that reads a log by executors in their own processes, and prints the result.

python -m tests.spark.executors LOG JARS CHECKPOINT
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import DataFrame
from pyspark.sql.functions import count, expr
from pyspark.sql.functions import sum as sum_of

from txmsg.spark import read_log, session, stream_log

MASTER = "local-cluster[2,1,1024]"
SETTINGS = {
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.sql.shuffle.partitions": "1",
}


def main(log: str, jars: str, checkpoint: str) -> None:
    """Print the number of messages and the sum of their offsets, for a batch and for a stream."""
    spark = session("executors", master=MASTER, kafka=jars, config=SETTINGS)
    batch = totals(read_log(spark, log, topics="t", minPartitions=4))
    found: list[Any] = []
    frame = stream_log(spark, log, topics="t", startingOffsets="earliest")
    writer = frame.writeStream.foreachBatch(lambda each, _: found.append(totals(each)))
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    print(json.dumps({"batch": batch, "stream": [sum(each) for each in zip(*found, strict=True)]}))
    made = Path(pyspark.__file__).parent / "work" / spark.sparkContext.applicationId
    spark.stop()
    shutil.rmtree(made)  # where Spark's installation keeps output of executors, and jars


def totals(frame: DataFrame) -> list[int]:
    row = frame.agg(count("*"), sum_of("offset"), sum_of(expr("length(value)"))).collect()[0]
    return [row[0], row[1], row[2]]


if __name__ == "__main__":
    main(*sys.argv[1:])
