"""Joins the tailer and the log, which do not import each other: the sinks of a tailer, and repair by the table.

rows        rows of the table as messages of a log
log_sink    MetaQ's own log
kafka_sink  topics of Kafka
repair      mends a log in a directory
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from txmsg.binlog.mirror.log_sink import LogSink
from txmsg.binlog.sink import MirrorSink
from txmsg.metaq.kafka.location import is_kafka
from txmsg.metaq.location import open_log

if TYPE_CHECKING:
    from txmsg.tracing import Tracing


def open_sink(
    where: str,
    tracing: Tracing | None = None,
    *,
    kafka_config: Path | None = None,
    replication_factor: int | None = None,
    min_insync_replicas: int | None = None,
) -> MirrorSink:
    """Return the log in a directory, made when missing, at an address, or in a Kafka.

    tracing: traces the appends that have traced messages. kafka_config, replication_factor, min_insync_replicas: of a
    Kafka, see KafkaSink. Raises LogBusy when another process writes the log of a directory; one that writes to a Kafka
    is fenced.
    """
    if is_kafka(where):
        from txmsg.binlog.mirror.kafka_sink import KafkaSink  # with txmsg[kafka] only

        return KafkaSink(
            where,
            kafka_config,
            replication_factor=replication_factor,
            min_insync_replicas=min_insync_replicas,
            tracing=tracing,
        )
    log = open_log(where, append=True)
    try:
        return LogSink(log, where, tracing)
    except BaseException:  # as while a server is away: this is tried again and again
        log.close()
        raise
