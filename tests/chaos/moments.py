"""Finds a given phase of a broker's work by the state of its database sessions, and stops it there.

A batch takes milliseconds, an assignment a few statements. So the sessions are looked at in a tight loop; what is seen
at it is stopped, and looked at again: it counts only if the server was still at it when the process stood still, or had
answered so lately that on a slow link the answer cannot have arrived.
"""

from __future__ import annotations

import time
from itertools import count
from typing import Any

import psycopg

from tests.chaos.cluster import Broker
from tests.chaos.network import SLOW_S
from tests.chaos.plan import Cut, Moment
from tests.chaos.tables import pinned

_RECONNECT_S = 0.2
_NUDGE_S = 1.5
_PATTERNS = {
    Moment.BATCH: r"txmsg\.write_batch\(",
    # Reading the owners of queues, to reassign them; and the statement that does so.
    Moment.ASSIGNMENT: r"left join txmsg\.queue_lease|update txmsg\.queue_lease l set broker_id",
}
_topics = count(1)

_AT_IT = """
select from pg_stat_activity
 where usename = %(role)s and query ~ %(pattern)s
   and (state in ('active', 'idle in transaction') or state_change > to_timestamp(%(since)s))
"""


def pause_in(moment: Moment, broker: Broker, url: str, *, hunt_s: float) -> Moment:
    """Stop the process in that phase of its work; return the phase, or ANY if it was not seen."""
    is_slow = moment is Moment.ASSIGNMENT
    if is_slow:
        broker.database.cut(Cut.SLOW)
    try:
        deadline = time.monotonic() + hunt_s
        while moment is not Moment.ANY and time.monotonic() < deadline:
            try:
                if _pause_in_phase(moment, broker, url, deadline, answered_s=SLOW_S if is_slow else 0.0):
                    return moment
            except psycopg.OperationalError:  # PostgreSQL was killed meanwhile
                time.sleep(_RECONNECT_S)
    finally:
        if is_slow:
            broker.database.heal()
    broker.process.pause_until_still()
    return Moment.ANY


def _pause_in_phase(moment: Moment, broker: Broker, url: str, deadline: float, *, answered_s: float) -> bool:
    """Return True if the process was stopped in the phase. answered_s: minimum time that an answer is in transit."""
    nudged_at = 0.0
    with psycopg.connect(pinned(url), autocommit=True, connect_timeout=5, prepare_threshold=1) as connection:
        while (now := time.monotonic()) < deadline:
            if moment is Moment.ASSIGNMENT and now > nudged_at + _NUDGE_S:
                _create_topic_to_assign(connection)
                nudged_at = now
            if _is_at_it(connection, moment, broker.role, since=time.time() - answered_s / 2):
                stopped_at = broker.process.pause_until_still()
                if _is_at_it(connection, moment, broker.role, since=stopped_at - answered_s):
                    return True
                broker.process.resume()
    return False


def _create_topic_to_assign(connection: psycopg.Connection[Any]) -> None:
    """Create another topic, whose queues must be assigned."""
    connection.execute(
        "with made as (insert into txmsg.topic (name, queue_count, ordered_queues) values (%s, 2, 2) returning id) "
        "insert into txmsg.queue (topic_id, number) select id, generate_series(0, 1) from made",
        (f"nudge-{next(_topics)}-{time.monotonic_ns()}",),
    )


def _is_at_it(connection: psycopg.Connection[Any], moment: Moment, role: str, *, since: float) -> bool:
    values = {"role": role, "pattern": _PATTERNS[moment], "since": since}
    return connection.execute(_AT_IT.encode(), values).fetchone() is not None
