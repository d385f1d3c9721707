"""The proxy with which other tests cut connections: its forwarding and its verdicts."""

from __future__ import annotations

import asyncio
import select
import threading
from collections.abc import Callable, Iterator

import psycopg
import pytest
from sqlalchemy import create_engine, text

from tests.postgres_proxy import CUT_AFTER, CUT_BEFORE, FORWARD, HOLD, PostgresProxy, Request, Verdict


@pytest.fixture
def proxy(database_url: str) -> Iterator[PostgresProxy]:
    with psycopg.connect(database_url) as connection:
        connection.execute("create table t (n int)")
    with PostgresProxy(database_url) as proxy:
        yield proxy


@pytest.fixture
def count(database_url: str) -> Callable[[], int]:
    """A function that returns the number of rows of t, bypassing the proxy."""

    def count() -> int:
        with psycopg.connect(database_url) as connection:
            row = connection.execute("select count(*) from t").fetchone()
        assert row is not None
        return int(row[0])

    return count


def on_commit(verdict: Verdict) -> Callable[[Request], Verdict]:
    return lambda request: verdict if request.sql == "COMMIT" else FORWARD


def test_pipelines_binary_results_copy_and_cancellation_are_forwarded(proxy: PostgresProxy) -> None:
    with psycopg.connect(proxy.url, prepare_threshold=0) as connection:
        with connection.pipeline():
            cursors = [connection.execute("select %s::int, %b::bytea", [n, b"x" * 100_000]) for n in range(50)]
            assert [cursor.fetchone() for cursor in cursors[:10]] == [(n, b"x" * 100_000) for n in range(10)]
        assert connection.cursor(binary=True).execute("select now() > '2020-01-01', 2.5::float8").fetchone() == (
            True,
            2.5,
        )
        with connection.cursor().copy("copy t from stdin") as copy:
            copy.write("1\n2\n")
        with connection.cursor().copy("copy t to stdout") as copy:
            assert b"".join(bytes(part) for part in copy) == b"1\n2\n"

        is_cancelled = threading.Event()

        def cancel() -> None:
            proxy.wait_for("pg_sleep")
            while not is_cancelled.wait(0.1):  # requests before the server has started are skipped
                connection.cancel_safe()

        cancelling = threading.Thread(target=cancel)
        cancelling.start()
        with pytest.raises(psycopg.errors.QueryCanceled):
            connection.execute("select pg_sleep(60)")
        is_cancelled.set()
        cancelling.join(60)


def test_the_text_of_a_prepared_statement_is_known_at_each_execution(proxy: PostgresProxy) -> None:
    engine = create_engine(
        proxy.url.replace("postgresql:", "postgresql+psycopg:"), connect_args={"prepare_threshold": 1}
    )
    with engine.connect() as connection:
        for n in range(5):
            connection.execute(text("insert into t values (:n)"), {"n": n})
    engine.dispose()
    inserts = [request for request in proxy.requests if "insert into t" in request.sql]
    assert len(inserts) == 5


def test_a_request_cut_before_is_not_executed(proxy: PostgresProxy, count: Callable[[], int]) -> None:
    proxy.on_request = on_commit(CUT_BEFORE)
    with pytest.raises(psycopg.OperationalError), psycopg.connect(proxy.url) as connection:
        connection.execute("insert into t values (1)")
    assert proxy.requests[-1].sql == "COMMIT"
    assert count() == 0


def test_a_request_cut_after_is_executed_although_its_caller_gets_an_error(
    proxy: PostgresProxy, count: Callable[[], int]
) -> None:
    proxy.on_request = on_commit(CUT_AFTER)
    with pytest.raises(psycopg.OperationalError), psycopg.connect(proxy.url) as connection:
        connection.execute("insert into t values (1)")
    assert count() == 1


def test_a_cut_after_inside_a_pipeline_forwards_earlier_replies(proxy: PostgresProxy, count: Callable[[], int]) -> None:
    proxy.on_request = lambda request: CUT_AFTER if "(2)" in request.sql else FORWARD
    owner = psycopg.connect(proxy.url)
    connection = owner.pgconn  # psycopg itself drops replies that came before the end of a connection
    connection.enter_pipeline_mode()
    for n in range(1, 4):
        connection.send_query_params(b"insert into t values (%d) returning n" % n, None)
        connection.pipeline_sync()
    replies = [_reply(connection) for _ in range(3)]
    statuses = [psycopg.pq.ExecStatus(reply.status).name if reply else "end" for reply in replies]
    assert statuses == ["TUPLES_OK", "end", "PIPELINE_SYNC"]
    with pytest.raises(psycopg.OperationalError, match="closed"):
        _reply(connection)
    owner.close()
    assert count() == 2


def _reply(connection: psycopg.pq.abc.PGconn) -> psycopg.pq.abc.PGresult | None:
    while connection.is_busy():  # get_result would wait without letting the proxy's thread run
        readable, _, _ = select.select([connection.socket], [], [], 10)
        assert readable, "no reply"
        connection.consume_input()
    return connection.get_result()


def test_a_held_request_waits_for_release_while_other_connections_continue(
    proxy: PostgresProxy, count: Callable[[], int]
) -> None:
    proxy.on_request = lambda request: HOLD if "(1)" in request.sql else FORWARD

    def insert() -> None:
        with psycopg.connect(proxy.url) as connection:
            connection.execute("insert into t values (1)")

    inserting = threading.Thread(target=insert)
    inserting.start()
    held = proxy.wait_for("INSERT INTO T")
    with psycopg.connect(proxy.url) as other:
        other.execute("insert into t values (2)")
    assert count() == 1
    proxy.release()
    proxy.wait_for("commit", after=held.number)
    inserting.join(60)
    assert count() == 2


async def test_an_asyncio_test_can_wait_hold_and_cut(proxy: PostgresProxy, count: Callable[[], int]) -> None:
    connection = await psycopg.AsyncConnection.connect(proxy.url, autocommit=True)
    proxy.on_request = lambda request: HOLD
    executing = asyncio.create_task(connection.execute("insert into t values (1)"))
    await proxy.wait_for_async("insert")
    proxy.release(CUT_BEFORE)
    with pytest.raises(psycopg.OperationalError):
        await executing
    await connection.close()
    assert count() == 0


def test_all_connections_can_be_cut_and_new_ones_refused_until_accept(proxy: PostgresProxy) -> None:
    connections = [psycopg.connect(proxy.url) for _ in range(3)]
    proxy.refuse()
    proxy.cut_all()
    for connection in connections:
        with pytest.raises(psycopg.OperationalError):
            connection.execute("select 1")
        connection.close()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(proxy.url)
    proxy.accept()
    with psycopg.connect(proxy.url) as connection:
        assert connection.execute("select 1").fetchone() == (1,)


def test_an_error_in_the_rule_of_a_test_is_raised(database_url: str) -> None:
    def wrong(request: Request) -> Verdict:
        raise ZeroDivisionError(request.sql)

    def run() -> None:
        with PostgresProxy(database_url) as proxy:
            proxy.on_request = wrong
            connection = psycopg.connect(proxy.url, autocommit=True)
            with pytest.raises(psycopg.OperationalError):
                connection.execute("select 7")
            connection.close()

    with pytest.raises(ZeroDivisionError, match="select 7"):
        run()


def test_waiting_for_a_request_that_never_comes_fails(proxy: PostgresProxy) -> None:
    with pytest.raises(AssertionError, match="no request with 'select 1'"):
        proxy.wait_for("select 1", timeout_s=0.01)
