"""A batch is written once; batches that would be counted twice or never are refused."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from tests.postgres_proxy import CUT_AFTER, CUT_BEFORE, FORWARD, PostgresProxy, Request, Verdict
from txmsg.errors import MisuseError, StorageError
from txmsg.spark.sink import BatchSink, claim_batch

_ONE, _OTHER = uuid4(), uuid4()
_WAIT_S = 60.0


def test_each_batch_is_claimed_once_and_in_order(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        for batch_id, expected in ((0, True), (0, False), (1, True), (2, True), (1, False), (2, False), (3, True)):
            assert claim_batch(connection, query="q", checkpoint_id=_ONE, batch_id=batch_id) is expected
        assert claim_batch(connection, query="other", checkpoint_id=_OTHER, batch_id=0), "queries share their marks"
        rows = connection.execute("select query, batch_id from txmsg_spark_query order by query").fetchall()
    assert rows == [("other", 0), ("q", 3)], "more than a row for each query"


def test_claim_is_rolled_back_with_its_transaction(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        with connection.transaction(force_rollback=True):
            assert claim_batch(connection, query="q", checkpoint_id=_ONE, batch_id=0)
        assert claim_batch(connection, query="q", checkpoint_id=_ONE, batch_id=0)


def test_another_checkpoint_or_an_older_or_empty_database_is_refused(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        with pytest.raises(StorageError, match="continues with batch 1, and this database has no record of it"):
            claim_batch(connection, query="q", checkpoint_id=_ONE, batch_id=1)
        claim_batch(connection, query="q", checkpoint_id=_ONE, batch_id=0)
        with pytest.raises(MisuseError, match=f"was written from checkpoint {_ONE}, and this is {_OTHER}"):
            claim_batch(connection, query="q", checkpoint_id=_OTHER, batch_id=0)
        with pytest.raises(StorageError, match="continues with batch 2, and the last one in this database is 0"):
            claim_batch(connection, query="q", checkpoint_id=_ONE, batch_id=2)


def test_two_drivers_of_one_query_write_a_batch_once(database_url: str) -> None:
    """The second waits for the first, also while the table is created."""
    entered = threading.Barrier(2)
    won: list[bool] = []

    def claim() -> None:
        with psycopg.connect(database_url) as connection:
            entered.wait(_WAIT_S)
            won.append(claim_batch(connection, query="q", checkpoint_id=_ONE, batch_id=0))

    threads = [threading.Thread(target=claim) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(_WAIT_S)
    assert sorted(won) == [False, True]


def _add(connection: psycopg.Connection[Any], n: int) -> None:
    connection.execute("insert into written values (%s)", (n,))


@pytest.mark.parametrize("verdict", [CUT_AFTER, CUT_BEFORE])
def test_batch_whose_commit_was_interrupted_is_written_once(database_url: str, verdict: Verdict) -> None:
    """The commit had reached the database, or not: the sink asks on another connection."""
    cut: list[Request] = []

    def cut_once(request: Request) -> Verdict:
        if cut or request.sql != "COMMIT" or not any("written" in each.sql for each in proxy.requests):
            return FORWARD
        cut.append(request)
        return verdict

    with psycopg.connect(database_url, autocommit=True) as connection, PostgresProxy(database_url) as proxy:
        connection.execute("create table written (n int)")
        proxy.on_request = cut_once
        with closing(BatchSink(proxy.url, "q", _add)) as sink:
            for batch_id in range(3):
                sink.write(_ONE, batch_id, batch_id)
        assert connection.execute("select n from written order by n").fetchall() == [(0,), (1,), (2,)]
        assert cut
        assert {each.connection for each in proxy.requests if "written" in each.sql} <= {1, 2}, "one for each batch"


def test_error_of_a_writer_ends_the_query_and_rolls_back(database_url: str) -> None:
    calls: list[int] = []

    def fail(connection: psycopg.Connection[Any], n: int) -> None:
        calls.append(n)
        _add(connection, n)
        raise ZeroDivisionError

    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("create table written (n int)")
        with pytest.raises(ZeroDivisionError):
            BatchSink(database_url, "q", fail).write(_ONE, 0, 7)
        assert calls == [7], "it was tried again"
        BatchSink(database_url, "q", _add).write(_ONE, 0, 8)
        assert connection.execute("select n from written").fetchall() == [(8,)]
