"""What the database alone knows for rules: how far mirrors are, and what statements of an operator's own return."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import psycopg

from txmsg.broker.alerts.conditions import MIRROR, Labels
from txmsg.broker.alerts.file import SqlRule
from txmsg.broker.store.connect import Connection, answering_within, query_session
from txmsg.broker.store.delivery import plain_cursor
from txmsg.errors import BrokerUnavailable

ROWS_MAX: Final = 100
"""Alerts of one rule of an operator's own."""
_VALUE: Final = "value"
_LABEL_LENGTH_MAX: Final = 200

# The oldest message that is not mirrored: its segment by where its queue starts in each, so that one partition is
# looked into.
_MIRRORS = """
    with positions as materialized (
        select m.name, q.id as queue, coalesce(p.next_offset, 0) as next_offset, p.stopped
          from txmsg.mirror m
         cross join lateral txmsg.mirrored_queues(m.include, m.exclude) q
          left join txmsg.mirror_queue p on p.mirror = m.name and p.queue = q.id
    ), ages as (
        select p.name, greatest(0, extract(epoch from now() - min(o.stored_at)))::float8 as behind_s,
               count(*) filter (where p.stopped is not null) as stopped
          from positions p
          left join lateral (
               select s.id from txmsg.segment s
                 left join txmsg.segment_base b on b.segment = s.id and b.queue = p.queue
                where s.state <> 'ahead' and not s.dropping and coalesce(b.base, 0) <= p.next_offset
                order by s.id desc limit 1) s on true
          left join lateral (
               select m.stored_at from txmsg.message m
                where m.segment = s.id and m.queue = p.queue and m.queue_offset = p.next_offset) o on true
         group by p.name)
    select m.name, coalesce(r.active, false), coalesce(a.behind_s, 0), coalesce(a.stopped, 0), r.safe_wal_size
      from txmsg.mirror m
      left join ages a on a.name = m.name
      left join pg_database d on d.datname = current_database()
      left join pg_replication_slots r on r.slot_name = 'txmsg_' || m.name || '_' || d.oid
"""


async def mirrors(conn: Connection) -> dict[str, dict[Labels, float]]:
    """Metrics of tailers as the database knows them, by mirror."""
    cursor = await plain_cursor(conn).execute(_MIRRORS)
    found: dict[str, dict[Labels, float]] = {
        "txmsg_mirror_tailing": {},
        "txmsg_mirror_lag_seconds": {},
        "txmsg_mirror_stopped_queues": {},
        "txmsg_mirror_safe_bytes": {},
    }
    for name, is_active, behind_s, stopped, safe_bytes in await cursor.fetchall():
        labels: Labels = frozenset({(MIRROR, name)})
        found["txmsg_mirror_tailing"][labels] = float(is_active)
        found["txmsg_mirror_lag_seconds"][labels] = behind_s
        found["txmsg_mirror_stopped_queues"][labels] = stopped
        if safe_bytes is not None:
            found["txmsg_mirror_safe_bytes"][labels] = safe_bytes
    return found


class RuleFailed(Exception):
    """A rule of an operator's own says nothing, and why. Without a secret in it."""


async def rows_of(rule: SqlRule) -> dict[Labels, float]:
    """What the statement of a rule returns now, with a timeout, in a transaction that only reads. Raises RuleFailed."""
    try:
        async with query_session(rule.database.reveal(), timeout_s=rule.timeout_s) as conn:
            with answering_within(conn, rule.timeout_s + 1.0):
                # The extended protocol, which takes one statement: a second one could end the transaction.
                cursor = conn.cursor(binary=True)
                await cursor.execute(rule.sql.encode(), prepare=True)
                columns = [column.name for column in cursor.description or ()]
                return values_of(columns, await cursor.fetchmany(ROWS_MAX))
    except BrokerUnavailable:
        raise RuleFailed(f"its database did not answer within {rule.timeout_s:g} s") from None
    except psycopg.Error as exc:
        if exc.sqlstate is None:
            raise RuleFailed("its database cannot be reached") from None
        raise RuleFailed(f"its database answered: {exc.diag.message_primary} ({exc.sqlstate})") from None


def values_of(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> dict[Labels, float]:
    """Numbers by the other columns of their rows: the column `value`, or the only one. Raises RuleFailed."""
    if not columns or (len(columns) > 1 and _VALUE not in columns):
        raise RuleFailed("its statement must return one column, or a column `value` and others that are labels")
    place = columns.index(_VALUE) if _VALUE in columns else 0
    found: dict[Labels, float] = {}
    for row in rows:
        if row[place] is None:
            continue
        try:
            number = float(row[place])
        except (TypeError, ValueError):
            raise RuleFailed(f"its statement returned a {type(row[place]).__name__}, not a number") from None
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise RuleFailed("its statement returned a number that is not finite, or beyond 1e308")
        labels = {name: str(of)[:_LABEL_LENGTH_MAX] for name, of in zip(columns, row, strict=True)}
        labels.pop(columns[place])
        found[frozenset(labels.items())] = number
    return found


def beyond(rule: SqlRule, values: Mapping[Labels, float]) -> dict[Labels, float]:
    """Those that are beyond the threshold of the rule."""
    return {
        labels: value
        for labels, value in values.items()
        if (rule.above is not None and value > rule.above) or (rule.below is not None and value < rule.below)
    }
