"""One Spark for the tests that need one, in a JVM that ends with them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from tests.spark.kafka_jars import kafka_jars
from txmsg.spark import session

_JVM_ENDS_S_MAX = 60.0
SETTINGS = {
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",  # starts sooner, takes less
    "spark.sql.shuffle.partitions": "1",
}


@pytest.fixture(scope="package")
def spark() -> Iterator[SparkSession]:
    """A session with the format "metaq". Its JVM ends afterwards."""
    yield (made := session("tests", master="local[2,4]", config=SETTINGS))
    gateway: Any = SparkContext._gateway  # pyspark has no other way to end its JVM
    made.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(_JVM_ENDS_S_MAX)
    SparkContext._gateway = SparkContext._jvm = None


@pytest.fixture(scope="package")
def kafka_source(spark: SparkSession) -> Path:
    """The jars with which sessions, including those of other processes, can read Kafka."""
    directory = kafka_jars()
    for jar in directory.glob("*.jar"):
        spark.sql(f"add jar '{jar}'")
    return directory
