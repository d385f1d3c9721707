"""Custom rules of operators: read-only statements on real databases."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import psycopg
import pytest

from tests.ports import own_port
from txmsg.broker.alerts.file import Secret, SqlRule
from txmsg.broker.alerts.observing import ALERTS_MAX, ROWS_MAX, RuleFailed, beyond, mirrors, rows_of, values_of
from txmsg.broker.store.connect import open_pool, session
from txmsg.checks.check import Severity


def rule(url: str, sql: str, **values: Any) -> SqlRule:
    given: dict[str, Any] = {
        "name": "R",
        "sql": sql,
        "database": Secret(url),
        "above": 0.0,
        "below": None,
        "for_s": 60.0,
        "timeout_s": 5.0,
        "severity": Severity.WARNING,
        "summary": "s",
        "action": "",
    }
    return SqlRule(**given | values)


def labels(**values: str) -> frozenset[tuple[str, str]]:
    return frozenset(values.items())


async def test_a_statement_returns_a_number_or_rows_with_labels(database_url: str) -> None:
    assert await rows_of(rule(database_url, "select count(*) from pg_class where false")) == {labels(): 0.0}
    rows = "select * from (values ('eu', 1.5::numeric), ('us', 2), ('asia', null)) v(region, value)"
    assert await rows_of(rule(database_url, rows)) == {labels(region="eu"): 1.5, labels(region="us"): 2.0}


async def test_rows_furthest_beyond_a_threshold_raise_alerts_and_others_are_counted(database_url: str) -> None:
    given = rule(database_url, "select n as host, n as value from generate_series(-9, 1000) n")
    values, more = beyond(given, await rows_of(given))
    assert values == {labels(host=str(number)): float(number) for number in range(1000, 1000 - ALERTS_MAX, -1)}
    assert more == 1000 - ALERTS_MAX
    with pytest.raises(RuleFailed, match="returned more than 10,000 rows: add a `where`, or aggregate"):
        await rows_of(rule(database_url, f"select n as host, 1 as value from generate_series(0, {ROWS_MAX}) n"))


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("insert into orders values (1)", "cannot execute INSERT in a read-only transaction"),
        (
            "select set_config('transaction_read_only', 'off', true)",
            "read-write mode must be set before",
        ),
        ("commit; insert into orders values (1)", "cannot insert multiple commands"),
        ("select pg_sleep(60)", "canceling statement due to statement timeout"),
        ("select 1 from nothing", 'relation "nothing" does not exist'),
        ("select 'many'", "returned a str, not a number"),
        ("select 1 as a, 2 as b", "must return one column, or a column `value`"),
    ],
)
async def test_statement_is_read_only_and_has_a_timeout(database_url: str, sql: str, words: str) -> None:
    with psycopg.connect(database_url, connect_timeout=10) as connection:
        connection.execute("create table orders (id int)")
    with pytest.raises(RuleFailed, match=words):
        await rows_of(rule(database_url, sql, timeout_s=0.5 if "sleep" in sql else 60.0))
    with psycopg.connect(database_url, connect_timeout=10) as connection:
        assert connection.execute("select count(*) from orders").fetchall() == [(0,)]


async def test_unreachable_database_is_reported_without_its_url() -> None:
    with pytest.raises(RuleFailed) as told:
        await rows_of(rule(f"postgresql://u:GEHEIM@127.0.0.1:{own_port()}/d", "select 1"))
    assert str(told.value) == "its database cannot be reached"


def test_a_rule_holds_beyond_its_threshold() -> None:
    found = {labels(a="1"): 5.0, labels(a="2"): 4.0, labels(a="3"): 3.0}
    assert beyond(rule("", "", above=4.0), found) == ({labels(a="1"): 5.0}, 0)
    assert beyond(rule("", "", above=None, below=4.0), found) == ({labels(a="3"): 3.0}, 0)


def test_result_without_columns_fails_the_rule() -> None:
    with pytest.raises(RuleFailed):
        values_of([], [])


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), 10**400, Decimal("1e400")])
def test_non_finite_value_fails_its_rule(value: Any) -> None:
    with pytest.raises(RuleFailed, match="not finite"):
        values_of(["value", "region"], [[1.0, "eu"], [value, "us"]])


async def test_statement_reads_the_lag_of_a_mirror(notify_url: str) -> None:
    with psycopg.connect(notify_url, connect_timeout=10) as connection:
        connection.execute("insert into txmsg.topic (name, queue_count, ordered_queues) values ('t', 1, 1)")
        connection.execute("insert into txmsg.queue (topic_id, number) select id, 0 from txmsg.topic")
        connection.execute("insert into txmsg.mirror (name, include, exclude) values ('metaq', '{*}', '{}')")
        connection.execute(
            "insert into txmsg.mirror_queue (mirror, queue, next_offset, stopped) "
            "select 'metaq', id, 0, 'it differs' from txmsg.queue"
        )
        connection.execute(
            "insert into txmsg.message (segment, queue, queue_offset, transaction_id, n, body, born_at, stored_at) "
            "select (select id from txmsg.segment where state = 'open'), id, 0, gen_random_uuid(), 0, '', now(), "
            "now() - interval '90 seconds' from txmsg.queue"
        )
    pool = open_pool(notify_url)
    await pool.open()
    async with session(pool) as conn:
        found = await mirrors(conn)
    await pool.close()
    metaq = labels(mirror="metaq")
    assert found["txmsg_mirror_tailing"] == {metaq: 0.0}
    assert found["txmsg_mirror_stopped_queues"] == {metaq: 1}
    assert 90 <= found["txmsg_mirror_lag_seconds"][metaq] < 120
    assert found["txmsg_mirror_safe_bytes"] == {}
