"""The databases as they are: SQL of the checker's own, no statement shared with the product."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from tests.chaos.history import GROUPS, Passed, Record, Row

_STEP_S = 0.2

_LEFT = """
with subscription as (
    select s.group_name, t.id as topic_id, q.id as queue_id
      from unnest(%(groups)s::text[], %(topics)s::text[]) s(group_name, topic)
      join txmsg.topic t on t.name = s.topic join txmsg.queue q on q.topic_id = t.id),
ends as (select queue, max(queue_offset) + 1 as end_offset from txmsg.message group by queue)
select (select count(*) from txmsg.half_message) + (select count(*) from txmsg.scheduled)
     + (select count(*) from txmsg.retry)
     + (select coalesce(sum(greatest(0, e.end_offset - coalesce(c.next_offset, 0))), 0)
          from subscription s join ends e on e.queue = s.queue_id
          left join txmsg.consumer_group g on g.name = s.group_name
          left join txmsg.cursor c on c.group_id = g.id and c.queue_id = e.queue)
"""
_SUBSCRIPTIONS = [(group, topic) for group, topics in GROUPS.items() for topic in topics]


@contextmanager
def _connection(url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(url, autocommit=True, connect_timeout=10, application_name="chaos") as connection:
        yield connection


def wait_until_quiet(url: str, *, patience_s: float, on_step: Callable[[int], None]) -> int:
    """Until all halves are resolved and all groups have passed everything; what is left then.

    That is more than 0 when for `patience_s` it has not become less.
    """
    groups, topics = map(list, zip(*_SUBSCRIPTIONS, strict=True))
    with _connection(url) as connection:
        least, deadline = None, time.monotonic() + patience_s
        while True:
            row = connection.execute(_LEFT.encode(), {"groups": groups, "topics": topics}).fetchone()
            assert row is not None
            left = int(row[0])
            on_step(left)
            if least is None or left < least:
                least, deadline = left, time.monotonic() + patience_s
            if left == 0 or time.monotonic() > deadline:
                return left
            time.sleep(_STEP_S)


def read_notify(url: str, record: Record) -> int:
    """Fills in what the Notify database says; how often queues were given to brokers, as the epochs tell."""
    with _connection(url) as connection:

        def rows(statement: str) -> list[tuple[Any, ...]]:
            return connection.execute(statement.encode()).fetchall()

        found = rows(
            "select t.name, q.number, m.queue_offset, m.segment, m.transaction_id::text, m.n, "
            "convert_from(m.body, 'UTF8'), coalesce(m.tag, ''), coalesce(m.ordering_key, '') "
            "from txmsg.message m join txmsg.queue q on q.id = m.queue join txmsg.topic t on t.id = q.topic_id "
            "order by t.name, q.number, m.queue_offset, m.segment"
        )
        record.rows = [Row(*row) for row in found]
        record.rolled_back = {row[0] for row in rows("select transaction_id::text from txmsg.rolled_back")}
        record.undecided = {
            body.decode(): parked or ""
            for body, parked in rows("select body, parked_reason from txmsg.half_message order by transaction_id, n")
        }
        record.scheduled = {row[0] for row in rows("select convert_from(body, 'UTF8') from txmsg.scheduled")}
        record.cursors = {
            (group, topic, number): Passed(next_offset, beyond)
            for group, topic, number, next_offset, beyond in rows(
                "select g.name, t.name, q.number, c.next_offset, "
                "(select coalesce(sum(upper(r) - lower(r)), 0)::int from unnest(c.acked) r) "
                "from txmsg.cursor c join txmsg.consumer_group g on g.id = c.group_id "
                "join txmsg.queue q on q.id = c.queue_id join txmsg.topic t on t.id = q.topic_id"
            )
        }
        for table, found_there in (("retry", record.retrying), ("dead_letter", record.dead)):
            found_there |= set(
                rows(
                    f"select g.name, t.name, q.number, r.queue_offset from txmsg.{table} r "
                    "join txmsg.consumer_group g on g.id = r.group_id "
                    "join txmsg.queue q on q.id = r.queue_id join txmsg.topic t on t.id = q.topic_id"
                )
            )
        return int(rows("select epoch - 1 from txmsg.lease where name = 'delivery'")[0][0])


def read_business(url: str, record: Record) -> None:
    """Fills in what the business database says."""
    with _connection(url) as connection:
        committed = connection.execute("select serial from sale union select serial from attempt where state = 'done'")
        record.committed = {row[0] for row in committed}
        effects = connection.execute("select body, count(*) from effect group by body")
        record.effects.update(dict(effects.fetchall()))
