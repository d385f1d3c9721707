"""Reads MetaQ with Spark, in batches and as a stream: the data source `metaq`, and a sink that writes each batch once.

java      finds a Java for Spark
sessions  a session with the format "metaq"
options   the options of a read
position  the position of a stream in its checkpoint    (pure)
tasks     cuts reads into tasks, backlogs into batches   (pure)
planner   finds the begins and ends of reads in a log
generations  checks that offsets hold under a later generation
columns   batches of a log as Arrow columns for Spark
reader    reads a task's messages
source    the data source, as Spark calls it
sink      writes batches into PostgreSQL, each once
frames    messages as DataFrames, wherever a log is
payloads  the columns of a topic's payloads        (pure)
kafka/    reads a log in Kafka, by Spark's own source for Kafka

Names are loaded when they are first used: an executor needs neither the sink's driver nor a Java.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from txmsg.runtime.lazy import lazy_names

if TYPE_CHECKING:
    from txmsg.spark.frames import read_log, stream_log
    from txmsg.spark.payloads import payload_schema
    from txmsg.spark.sessions import register, session
    from txmsg.spark.sink import claim_batch, write_idempotent
    from txmsg.spark.source import MetaqDataSource

__all__ = [
    "MetaqDataSource",
    "claim_batch",
    "payload_schema",
    "read_log",
    "register",
    "session",
    "stream_log",
    "write_idempotent",
]

_MODULE_OF = {
    "MetaqDataSource": "txmsg.spark.source",
    "claim_batch": "txmsg.spark.sink",
    "payload_schema": "txmsg.spark.payloads",
    "read_log": "txmsg.spark.frames",
    "register": "txmsg.spark.sessions",
    "session": "txmsg.spark.sessions",
    "stream_log": "txmsg.spark.frames",
    "write_idempotent": "txmsg.spark.sink",
}

if not TYPE_CHECKING:  # a type checker that saw it would take every misspelt name for an object
    __getattr__, __dir__ = lazy_names(__name__, _MODULE_OF)
