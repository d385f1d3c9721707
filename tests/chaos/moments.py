"""Finds the middle of a broker's work, by what its database sessions are doing, and stops it there.

A batch takes milliseconds, an assignment too. So the sessions are looked at in a tight loop; what is seen in the middle
is stopped, and looked at again: it counts only if the database was still at it when the process stood still.
"""

from __future__ import annotations

import time
from typing import Any

import psycopg

from tests.chaos.plan import Moment
from tests.chaos.process import Process

HUNT_S_MAX = 6.0
_PATTERNS = {Moment.BATCH: "write_batch_", Moment.ASSIGNMENT: r"txmsg\.(queue_)?lease|assign"}

_AT_IT = """
select from pg_stat_activity
 where usename = %(role)s and query ~ %(pattern)s
   and (state in ('active', 'idle in transaction') or state_change > to_timestamp(%(since)s))
"""


def pause_in(moment: Moment, process: Process, role: str, url: str) -> Moment:
    """Stops the process in that moment of its work; the moment, or ANY when it was stopped without having met it."""
    if moment is Moment.ANY:
        process.pause()
        return moment
    deadline = time.monotonic() + HUNT_S_MAX
    with psycopg.connect(url, autocommit=True, connect_timeout=5, prepare_threshold=1) as connection:
        while time.monotonic() < deadline:
            if not _is_at_it(connection, moment, role, since=float("inf")):
                continue
            stopped_at = process.pause()
            if _is_at_it(connection, moment, role, since=stopped_at):
                return moment
            process.resume()
    process.pause()
    return Moment.ANY


def _is_at_it(connection: psycopg.Connection[Any], moment: Moment, role: str, *, since: float) -> bool:
    values = {"role": role, "pattern": _PATTERNS[moment], "since": since}
    return connection.execute(_AT_IT.encode(), values).fetchone() is not None
