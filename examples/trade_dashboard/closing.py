"""A second Spark job over the same trades: closes each minute, and corrects it by late events.

    python -m examples.trade_dashboard.closing --metaq ./metaq --results postgresql://user@host/books --checkpoint ./job

    select * from minute_report order by minute desc limit 10;

It counts as the first job does (counting.py), so both agree to the cent; what it does otherwise is in minutes.py.
Spark's own watermark would drop what is late, where the books need it.
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

from . import minutes, offsets
from .counting import count
from .figures import Deltas
from .offsets import Span
from .running import run, start_query

QUERY = "trade_minutes"


def start(spark: SparkSession, *, metaq: str, results: str, checkpoint: str, trigger_s: float = 0.0) -> StreamingQuery:
    """Start the query, as in job.py. Its tables are created first; they may share a database with the figures."""
    with psycopg.connect(results) as connection:
        minutes.create_tables(connection)
        offsets.create_table(connection)
    sink = write_idempotent(results, query=QUERY, collect=_counted, write=_write)
    return start_query(spark, sink, query=QUERY, metaq=metaq, checkpoint=checkpoint, trigger_s=trigger_s)


def _counted(batch: DataFrame, batch_id: int) -> tuple[Deltas, Mapping[int, Span]]:
    started_at = datetime.now(UTC)
    found = count(batch.toArrow())
    return found.deltas(batch_id, started_at), found.spans


def _write(connection: psycopg.Connection[Any], found: tuple[Deltas, Mapping[int, Span]]) -> None:
    deltas, spans = found
    offsets.advance(connection, QUERY, spans)
    minutes.add(connection, deltas)


if __name__ == "__main__":
    sys.exit(
        run(
            start,
            "python -m examples.trade_dashboard.closing",
            "Closes each minute of the trades of a MetaQ log, and corrects it by what comes late, until it is stopped.",
        )
    )
