"""The Spark job of the trade dashboard: reads trades from MetaQ, and adds each batch to the figures once.

    python -m examples.trade_dashboard.job --metaq ./metaq --results postgresql://user@host/dashboard --checkpoint ./job

The log may be in a directory, on a server, or in Kafka: the job is the same.

A batch is counted and written in one transaction, which also notes its number: a batch that is run again after a crash
adds nothing twice. How it runs and ends: running.py.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import psycopg
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from txmsg.spark import write_idempotent

from . import figures, offsets
from .counting import count
from .figures import Deltas
from .offsets import Span
from .running import run, start_query

QUERY = "trade_dashboard"


def start(spark: SparkSession, *, metaq: str, results: str, checkpoint: str, trigger_s: float = 0.0) -> StreamingQuery:
    """Start the query. Its tables are created first.

    metaq: a log's directory, HOST:PORT of its server, or kafka://HOST:PORT. results: the database of the figures.
    trigger_s: a batch begins no sooner than this after the one before; 0 for as soon as there is something to read.
    """
    with psycopg.connect(results) as connection:
        figures.create_tables(connection)
        offsets.create_table(connection)
    sink = write_idempotent(results, query=QUERY, collect=_counted, write=_write)
    return start_query(spark, sink, query=QUERY, metaq=metaq, checkpoint=checkpoint, trigger_s=trigger_s)


def _counted(batch: DataFrame, batch_id: int) -> tuple[Deltas, Mapping[int, Span]]:
    """Return the figures of a batch. Spark reads it; a separate process would cost more than the counting."""
    started_at = datetime.now(UTC)
    messages = batch.toArrow()
    found = count(messages)
    planned_at = messages["planned_at"][0].as_py() if messages.num_rows else started_at
    waits = found.waits(planned_at=planned_at, started_at=started_at, read_at=datetime.now(UTC))
    return found.deltas(batch_id, started_at, waits), found.spans


def _write(connection: psycopg.Connection[Any], found: tuple[Deltas, Mapping[int, Span]]) -> None:
    deltas, spans = found
    if not deltas.messages:  # the first batch of a query without messages yet: there are no figures to add
        return
    offsets.advance(connection, QUERY, spans)
    figures.add(connection, deltas)


if __name__ == "__main__":
    sys.exit(
        run(
            start,
            "python -m examples.trade_dashboard.job",
            "Counts the trades of a MetaQ log into the figures of the trade dashboard, until it is stopped.",
        )
    )
