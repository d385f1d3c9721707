"""The statement behind the metrics of groups, on a real database."""

from __future__ import annotations

import psycopg
from psycopg import sql

from tests.mirror.rows import make_queues, store, written
from txmsg.broker.store import figures

_SEGMENT = """
create table txmsg.message_{0} partition of txmsg.message for values in ({0});
insert into txmsg.segment (id, state, opened_at, closed_at) values ({0}, 'closed', now(), now())
"""
_BEHIND = """
insert into txmsg.consumer_group (name) select 'g' || n from generate_series(1, 50) n;
insert into txmsg.cursor (group_id, queue_id, next_offset, epoch)
select g.id, q.id, g.id %% 9, 0 from txmsg.consumer_group g cross join txmsg.queue q
"""


def test_oldest_unread_message_is_searched_in_one_partition_once_per_position(notify_url: str) -> None:
    make_queues(notify_url, "t", 2)
    with psycopg.connect(notify_url, cursor_factory=psycopg.ClientCursor, connect_timeout=10) as connection:
        for number in (100, 101, 102):
            connection.execute(_SEGMENT.format(number).encode())
    store(notify_url, [written("t", queue, offset) for queue in range(2) for offset in range(10)], segment=102)
    with psycopg.connect(notify_url, cursor_factory=psycopg.ClientCursor, connect_timeout=10) as connection:
        connection.execute(_BEHIND.encode().replace(b"%%", b"%"))
        statement = sql.SQL("explain (analyze, costs off, timing off, summary off) ") + figures._groups_in(102)
        plan = [line for (line,) in connection.execute(statement, {"named": 10})]
    [unread] = [place for place, line in enumerate(plan) if "CTE unread" in line]
    looked_at = [line for line in plan[unread:] if " on message_" in line]
    assert len(looked_at) >= 4
    assert [("message_102" in line) for line in looked_at if "never executed" not in line] == [True]
    [executed] = [line for line in looked_at if "never executed" not in line]
    assert "loops=18)" in executed
