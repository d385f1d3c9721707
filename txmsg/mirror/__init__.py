"""Joins the tailer and the log, which do not know each other: what the tailer writes to, and repairs by the table.

log_sink    MetaQ's own log
kafka_sink  topics of Kafka
repair      mends a log in a directory
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from txmsg.metaq.location import open_log
from txmsg.mirror.log_sink import LogSink

if TYPE_CHECKING:
    from txmsg.tracing import Tracing


def open_sink(where: str, tracing: Tracing | None = None) -> LogSink:
    """The log in a directory, made when missing, or at an address. Raises LogBusy when another process writes it.

    tracing: traces the appends that have traced messages.
    """
    log = open_log(where, append=True)
    try:
        return LogSink(log, where, tracing)
    except BaseException:  # as while a server is away: this is tried again and again
        log.close()
        raise
