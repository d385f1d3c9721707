"""The databases as they are: the checker's own SQL, no statement shared with the product."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from tests.chaos.history import DURABILITY, OTHER_SHARD, STORY_TOPIC, DatabaseContents, GroupProgress, Record, Row
from tests.chaos.liveness import Waiting

_STEP_S = 0.2

_LEFT = """
with subscription as (
    select s.group_name, t.id as topic_id, q.id as queue_id
      from unnest(%(groups)s::text[], %(topics)s::text[]) s(group_name, topic)
      join txmsg.topic t on t.name = s.topic join txmsg.queue q on q.topic_id = t.id),
ends as (select queue, min(queue_offset) as begin_offset, max(queue_offset) + 1 as end_offset
           from txmsg.message group by queue)
select (select count(*) from txmsg.half_message) + (select count(*) from txmsg.scheduled)
     + (select count(*) from txmsg.retry)
     + (select coalesce(sum(greatest(0, e.end_offset - greatest(e.begin_offset, coalesce(c.next_offset, 0)))), 0)
          from subscription s join ends e on e.queue = s.queue_id
          left join txmsg.consumer_group g on g.name = s.group_name
          left join txmsg.cursor c on c.group_id = g.id and c.queue_id = e.queue)
"""

PINNED = {
    "DateStyle": "ISO",
    "TimeZone": "UTC",
    "default_transaction_isolation": r"read\ committed",
    "standard_conforming_strings": "on",
    "search_path": "public",
    "statement_timeout": "0",
    "synchronous_commit": "local",
}
"""Settings that sessions of the checker rely on, overriding those of the database: see settings.py."""


def pinned(url: str) -> str:
    """Return psycopg options of a session that ignores settings of database and role."""
    options = " ".join(f"-c {name}={value}" for name, value in PINNED.items())
    return make_conninfo(url, options=options, client_encoding="UTF8")


@contextmanager
def _connection(url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(pinned(url), autocommit=True, connect_timeout=10, application_name="chaos") as connection:
        yield connection


def wait_until_quiet(
    urls: Sequence[str],
    groups: Mapping[str, Mapping[str, str]],
    *,
    patience_s: float,
    on_step: Callable[[int], None],
) -> int:
    """Wait until all half messages are resolved and these groups have no lag; return the rest.

    That is more than 0 when for `patience_s` it has not become less.
    """
    with ExitStack() as stack:
        connections = [stack.enter_context(_connection(url)) for url in urls]
        least, deadline = None, time.monotonic() + patience_s
        while True:
            left = sum(_left(connection, groups) for connection in connections)
            on_step(left)
            if least is None or left < least:
                least, deadline = left, time.monotonic() + patience_s
            if left == 0 or time.monotonic() > deadline:
                return left
            time.sleep(_STEP_S)


def wait_until_relayed(url: str, *, patience_s: float, on_step: Callable[[int], None]) -> None:
    """Wait until the outbox is empty, or has not shrunk for patience_s: then its messages are missing."""
    least, deadline = None, time.monotonic() + patience_s
    with _connection(url) as connection:
        while True:
            row = connection.execute("select count(*) from txmsg_outbox").fetchone()
            left = row[0] if row is not None else 0
            on_step(left)
            if least is None or left < least:
                least, deadline = left, time.monotonic() + patience_s
            if left == 0 or time.monotonic() > deadline:
                return
            time.sleep(_STEP_S)


def _left(connection: psycopg.Connection[Any], groups: Mapping[str, Mapping[str, str]]) -> int:
    subscriptions = [(group, topic) for group, topics in groups.items() for topic in topics]
    names, topics = map(list, zip(*subscriptions, strict=True))
    row = connection.execute(_LEFT.encode(), {"groups": names, "topics": topics}).fetchone()
    assert row is not None
    return int(row[0])


_WAITING_OF_GROUPS = """
with subscription as (
    select s.group_name, t.id as topic_id, t.name as topic, q.id as queue_id, q.number
      from unnest(%(groups)s::text[], %(topics)s::text[]) s(group_name, topic)
      join txmsg.topic t on t.name = s.topic join txmsg.queue q on q.topic_id = t.id),
ends as (select queue, max(queue_offset) + 1 as end_offset from txmsg.message group by queue)
select format('message of queue %%s of %%s for group %%s', s.number + %(shift)s, s.topic, s.group_name),
       c.next_offset::text
  from subscription s join ends e on e.queue = s.queue_id
  join txmsg.consumer_group g on g.name = s.group_name
  join txmsg.cursor c on c.group_id = g.id and c.queue_id = s.queue_id
 where c.next_offset < e.end_offset
union all
select format('retry of offset %%s in queue %%s of %%s for group %%s', r.queue_offset, q.number + %(shift)s, t.name,
              g.name), r.attempt::text
  from txmsg.retry r join txmsg.consumer_group g on g.id = r.group_id
  join txmsg.queue q on q.id = r.queue_id join txmsg.topic t on t.id = q.topic_id
 where r.ordering_key is null or not exists (
       select from txmsg.retry e where e.group_id = r.group_id and e.queue_id = r.queue_id
          and e.ordering_key = r.ordering_key and e.queue_offset < r.queue_offset)
union all
select format('half message %%s', convert_from(h.body, 'UTF8')), h.checks::text
  from txmsg.half_message h where h.n = 0 and not h.decided and h.parked_reason is null
union all
select format('delayed message %%s', convert_from(s.body, 'UTF8')), '' from txmsg.scheduled s
"""


def waiting(url: str, groups: Mapping[str, Mapping[str, str]], *, is_other: bool = False) -> list[Waiting]:
    """Yield all waiting items of a Notify database."""
    subscriptions = [(group, topic) for group, topics in groups.items() for topic in topics]
    names, topics = map(list, zip(*subscriptions, strict=True))
    values = {"groups": names, "topics": topics, "shift": OTHER_SHARD if is_other else 0}
    with _connection(url) as connection:
        found = connection.execute(_WAITING_OF_GROUPS.encode(), values)
        return [Waiting(what, state, is_ordered=f" of {STORY_TOPIC} " in what) for what, state in found]


def waiting_in_outbox(url: str) -> list[Waiting]:
    """Yield the first outbox row of each producer group."""
    with _connection(url) as connection:
        found = connection.execute("select 'outbox of ' || group_name, min(seq)::text from txmsg_outbox group by 1")
        return list(itertools.starmap(Waiting, found))


_ROWS = """
select t.name, q.number + %(shift)s, m.queue_offset, m.segment, m.transaction_id::text, m.n,
       convert_from(m.body, 'UTF8'), coalesce(m.tag, ''), coalesce(m.ordering_key, '')
  from txmsg.message m join txmsg.queue q on q.id = m.queue join txmsg.topic t on t.id = q.topic_id
 order by t.name, q.number, m.queue_offset, m.segment
"""
_DEAD = """
select g.name, convert_from(d.body, 'UTF8') from txmsg.dead_letter d join txmsg.consumer_group g on g.id = d.group_id
"""


def survey(url: str) -> DatabaseContents:
    """Return the contents of a server without writers."""
    with _connection(url) as connection:

        def rows(statement: str) -> list[tuple[Any, ...]]:
            return connection.execute(statement.encode()).fetchall()

        found = connection.execute(_ROWS.encode(), {"shift": 0}).fetchall()
        return DatabaseContents(
            rows=frozenset((row.body, row.place) for row in itertools.starmap(Row, found)),
            halves=dict(rows("select convert_from(body, 'UTF8'), transaction_id::text from txmsg.half_message")),
            scheduled=frozenset(row[0] for row in rows("select convert_from(body, 'UTF8') from txmsg.scheduled")),
            rolled_back=frozenset(row[0] for row in rows("select transaction_id::text from txmsg.rolled_back")),
            dead=frozenset(rows(_DEAD)),
        )


def dead_letters(url: str) -> set[tuple[str, str]]:
    """Return group and body of each dead letter."""
    with _connection(url) as connection:
        return set(connection.execute(_DEAD.encode()).fetchall())


def cursors(url: str, group: str, topic: str) -> dict[int, int]:
    """Return the minimum progress of a group by queue number."""
    with _connection(url) as connection:
        found = connection.execute(
            "select q.number, coalesce(c.seek_to, c.next_offset) from txmsg.cursor c "
            "join txmsg.consumer_group g on g.id = c.group_id join txmsg.queue q on q.id = c.queue_id "
            "join txmsg.topic t on t.id = q.topic_id where g.name = %s and t.name = %s",
            (group, topic),
        )
        return dict(found.fetchall())


def read_notify(url: str, record: Record, *, is_other: bool = False) -> None:
    """Add the contents of a Notify database."""
    shift = OTHER_SHARD if is_other else 0
    with _connection(url) as connection:

        def rows(statement: str) -> list[tuple[Any, ...]]:
            return connection.execute(statement.encode()).fetchall()

        for row in itertools.starmap(Row, connection.execute(_ROWS.encode(), {"shift": shift})):
            (record.rows if row.topic in DURABILITY else record.chain_rows).append(row)
        record.rows.sort(key=lambda row: (row.topic, row.queue, row.offset, row.segment))
        record.rolled_back |= {row[0] for row in rows("select transaction_id::text from txmsg.rolled_back")}
        record.undecided |= {
            body.decode(): parked or ""
            for body, parked in rows("select body, parked_reason from txmsg.half_message order by transaction_id, n")
        }
        record.scheduled |= {row[0] for row in rows("select convert_from(body, 'UTF8') from txmsg.scheduled")}
        record.cursors |= {
            (group, topic, number + shift): GroupProgress(next_offset, beyond)
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
                    f"select g.name, t.name, q.number + {shift}, r.queue_offset from txmsg.{table} r "
                    "join txmsg.consumer_group g on g.id = r.group_id "
                    "join txmsg.queue q on q.id = r.queue_id join txmsg.topic t on t.id = q.topic_id"
                )
            )


def read_business(url: str, record: Record) -> None:
    """Fill in the contents of the business database."""
    with _connection(url) as connection:
        committed = connection.execute("select serial from sale union select serial from attempt where state = 'done'")
        record.committed = {row[0] for row in committed}
        effects = connection.execute("select body, count(*) from effect group by body")
        record.effects.update(dict(effects.fetchall()))
