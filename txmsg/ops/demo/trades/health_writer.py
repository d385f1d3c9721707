"""Writes the state of the processes into a file every second: for the page, and for the line in the terminal."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import closing
from typing import Final, Self

from txmsg.administration.ask import Nothing
from txmsg.administration.halves import AdminService
from txmsg.binlog import table
from txmsg.binlog.database import connect, translated
from txmsg.errors import TxmsgError
from txmsg.metaq import LogAccess, LogQueue
from txmsg.ops.demo.trades.trade_stage import TOPIC, TradeStage
from txmsg.runtime.logs import EventLog
from txmsg.wire.blocking import BlockingChannel

EVERY_S: Final = 1.0
ASKED_S_MAX: Final = 2.0

_log = EventLog(__name__)


class HealthWriter:
    """Measures all parts of a stage, on a thread of its own."""

    def __init__(self, stage: TradeStage) -> None:
        self._stage = stage
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="health", daemon=True)
        self.measures: Mapping[str, float] = {}
        """The last measures; those that could not be taken are left out."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        with self._stage.channel() as channel:
            while not self._ending.wait(EVERY_S):
                self.measures = {**_of_broker(channel), **_of_tailer(self._stage.url("notify"), self._stage.access)}
                self._stage.write_health(self.measures)


def _of_broker(channel: BlockingChannel) -> dict[str, float]:
    try:
        stats = channel.call(AdminService.stats, Nothing(), timeout_s=ASKED_S_MAX)
    except TxmsgError as exc:
        _log.info("demo.no_figures", "no figures from the broker: %(error)s", error=exc)
        return {}
    return {
        "undecided": stats.halves,
        "in_doubt": stats.in_doubt,
        "waiting": sum(lag.waiting + lag.retrying for lag in stats.groups),
    }


def _of_tailer(storage: str, log: LogAccess) -> dict[str, float]:
    """Return what is in the table and not in the log. The mirror's notes are up to a second old, so the log is read."""
    try:
        with closing(connect(storage)) as session, translated():
            queues = table.queues(session, [TOPIC], [])
            ranges = log.ranges([LogQueue(queue.topic, queue.number) for queue in queues])
            ends = {queue.id: ranges[LogQueue(queue.topic, queue.number)].end for queue in queues}
            behind = {queue.id: ends[queue.id] for queue in queues if ends[queue.id] < queue.end}
            rows = sum(queue.end - behind[queue.id] for queue in queues if queue.id in behind)
            return {"tailer_messages": rows, "tailer_s": round(table.oldest_age_s(session, behind), 3)}
    except TxmsgError as exc:
        _log.info("demo.not_comparable", "table and log cannot be compared: %(error)s", error=exc)
        return {}
