"""The Spark jobs of the trade dashboard: counted and set-aside messages, and nothing counted twice."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import psycopg
import pytest
from pyspark.sql import SparkSession

from examples.trade_dashboard import closing, figures, job
from tests.postgres_proxy import CUT_AFTER, FORWARD, PostgresProxy, Request, Verdict
from tests.waiting import until
from txmsg.message import Message
from txmsg.metaq import Log, LogProducer

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]  # JVMs start

_WAIT_S_MAX = 180.0


def trade(event: str, cents: int, **more: object) -> Message:
    """Return a message of the topic, committed now."""
    said = {"event": event, "amount_cents": cents, "seller": "mobile-07", "province": "tibet", "category": "mobile"}
    return Message("trade.order", json.dumps({**said, "at_us": time.time_ns() // 1000, **more}).encode())


def read(url: str) -> figures.Figures:
    with psycopg.connect(url, autocommit=True) as connection:
        return figures.read(connection)


def test_trades_are_counted_among_bad_and_late_messages(spark: SparkSession, tmp_path: Path, database_url: str) -> None:
    """Bad messages are set aside, late ones count, refunds are subtracted."""
    an_hour_ago_us = time.time_ns() // 1000 - 3_600_000_000
    with Log(tmp_path / "log") as log:
        producer = LogProducer(log)
        producer.send_many([trade("created", 500), trade("paid", 500), trade("created", 70)])
        query = job.start(
            spark, metaq=str(log.root), results=database_url, checkpoint=str(tmp_path / "checkpoint"), trigger_s=0
        )
        query.processAllAvailable()
        assert read(database_url).total.turnover_cents == 500
        bad = [b"\xff\0", b"{}", b"x" * 1_000_000, json.dumps({"event": "paid", "amount_cents": "1"}).encode()]
        producer.send_many([Message("trade.order", body) for body in bad], queue=2)
        late = trade("paid", 70, province="anhui", at_us=an_hour_ago_us)
        producer.send_many([trade("refunded", 30), late, trade("shipped", 500)])
        query.processAllAvailable()
        assert query.isActive
        batches = [each.numInputRows for each in query.recentProgress if each.numInputRows]
        query.stop()
    assert sum(batches) == 10
    found = read(database_url)
    total = found.total
    assert (total.orders, total.paid, total.shipped, total.refunded) == (2, 2, 1, 1)
    assert (total.turnover_cents, total.late_events, total.bad_messages) == (540, 1, 4)
    assert [(province.key, province.paid, province.turnover_cents) for province in found.provinces] == [
        ("tibet", 1, 470),
        ("anhui", 1, 70),
    ]
    assert [(seller.key, seller.turnover_cents) for seller in found.sellers] == [("mobile-07", 540)]
    assert found.batch is not None
    assert found.batch.messages == batches[-1]
    with psycopg.connect(database_url) as connection:
        rows = connection.execute('select "offset", reason, body from figures_bad order by 1').fetchall()
    assert [body for _, _, body in rows] == [each[: 8 * 1024] for each in bad]
    assert [reason.split(":")[0] for _, reason, _ in rows] == [
        *("no JSON", "event is missing", "longer than 8192 bytes, as no trade is"),
        "amount_cents '1' is no whole number from 0 to 10000000000000",
    ]


def test_windowed_job_agrees_with_the_figures_despite_late_messages(
    spark: SparkSession, tmp_path: Path, database_url: str
) -> None:
    """Both write into one database."""
    minute_us = (time.time_ns() // 60_000_000_000 - 60) * 60_000_000

    def at(seconds: int, event: str, cents: int) -> Message:
        return trade(event, cents, at_us=minute_us + seconds * 1_000_000)

    parts = (
        [at(5, "created", 100), at(5, "paid", 100), at(50, "paid", 50)],
        [at(59, "paid", 1), at(70, "paid", 8), Message("trade.order", b"{}")],
        [at(30, "paid", 20), at(31, "refunded", 4), at(75, "shipped", 3)],
    )
    with Log(tmp_path / "log") as log:
        queries = [
            each.start(spark, metaq=str(log.root), results=database_url, checkpoint=str(tmp_path / each.QUERY))
            for each in (job, closing)
        ]
        for part in parts:
            LogProducer(log, queues=1).send_many(part)
            for query in queries:
                query.processAllAvailable()
        for query in queries:
            query.stop()
    with psycopg.connect(database_url) as connection:
        [told] = connection.execute(
            "select published_cents, corrections, orders, paid, turnover_cents from minute_report"
        ).fetchall()
        still_open = connection.execute("select paid, turnover_cents from minute_open").fetchall()
    assert told == (151, 1, 1, 4, 167)
    assert still_open == [(1, 8)]
    assert read(database_url).total.turnover_cents == 167 + 8


def test_job_killed_between_its_commit_and_the_checkpoint_counts_nothing_twice(
    tmp_path: Path, database_url: str
) -> None:
    """The second batch's commit gets no reply, and the job cannot reach the database again until it is killed."""
    checkpoint = tmp_path / "checkpoint"

    def cut_off(request: Request) -> Verdict:
        if request.sql != "COMMIT" or not any("figures_batch" in earlier.sql for earlier in proxy.requests[since:]):
            return FORWARD
        proxy.refuse()
        return CUT_AFTER

    with Log(tmp_path / "log") as log, PostgresProxy(database_url) as proxy:
        producer = LogProducer(log)
        command = [
            "--metaq",
            str(log.root),
            "--results",
            proxy.url,
            "--checkpoint",
            str(checkpoint),
            "--trigger",
            "0.1",
        ]
        producer.send(trade("paid", 100))
        with _job(command, tmp_path / "first.log") as first:
            _wait_for_turnover(database_url, 100, first)
            since = len(proxy.requests)
            proxy.on_request = cut_off
            producer.send_many([trade("paid", 20), trade("refunded", 5)])
            _wait_for_turnover(database_url, 115, first)
        marks = [int(each.name) for each in (checkpoint / "commits").iterdir() if each.name.isdecimal()]
        assert marks == [0], "Spark had noted the batch that was to be killed before its mark"

        producer.send(trade("paid", 4))
        proxy.on_request = lambda request: FORWARD
        proxy.accept()
        with _job(command, tmp_path / "second.log") as second:
            _wait_for_turnover(database_url, 119, second)
            second.send_signal(signal.SIGTERM)
            assert second.wait(_WAIT_S_MAX) == 0, (tmp_path / "second.log").read_text()
        batches = read(database_url).batch
        assert batches is not None
        assert batches.batch_id == 2


def test_job_retries_a_python_process_that_did_not_start_and_ends_on_other_errors(
    tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first process that should read the log exits at once, so Spark waits for it in vain."""
    python, failed = tmp_path / "python", tmp_path / "failed"
    python.write_text(
        f"""#!/bin/sh
case "$*" in *python_streaming_source_runner*) if mkdir {failed} 2> /dev/null; then exit 1; fi;; esac
exec {sys.executable} "$@"
"""
    )
    python.chmod(0o755)
    monkeypatch.setenv("PYSPARK_PYTHON", str(python))
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()  # else it warms up first
    command = ["--metaq", str(tmp_path / "log"), "--results", database_url, "--checkpoint", str(checkpoint)]
    with Log(tmp_path / "log") as log:
        LogProducer(log).send(trade("paid", 100))
        with _job(command, tmp_path / "job.log") as running:
            _wait_for_turnover(database_url, 100, running)
            assert failed.exists()
            until((checkpoint / "commits" / "0").exists)  # else the next job counts the batch once more
            running.send_signal(signal.SIGTERM)
            assert running.wait(_WAIT_S_MAX) == 0, (tmp_path / "job.log").read_text()
        said = (tmp_path / "job.log").read_text()
        assert re.search(r"the query is started again in 1 s, for it has ended: .*failed to connect back", said), said

        with psycopg.connect(database_url) as connection:
            connection.execute("drop table txmsg_spark_query")
        LogProducer(log).send(trade("paid", 1))
        with _job(command, tmp_path / "emptied.log") as running:
            assert running.wait(_WAIT_S_MAX) == 1
    assert "the query has ended: " in (said := (tmp_path / "emptied.log").read_text())
    assert "this database has no record of it" in said, said


@contextmanager
def _job(command: Sequence[str], told: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a job that reads; kill it at the end if it still runs, and check that its processes are gone."""
    with told.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "examples.trade_dashboard.job", *command],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    assert process.stdout is not None
    try:
        assert process.stdout.readline().startswith("counting trade.order of "), told.read_text()
        started = psutil.Process(process.pid).children(recursive=True)
        assert started
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    _, left = psutil.wait_procs(started, timeout=_WAIT_S_MAX)
    assert not left, "processes outlived the job"


def _wait_for_turnover(url: str, cents: int, process: subprocess.Popen[str]) -> None:
    def is_there() -> bool:
        assert process.poll() is None, "the job has ended"
        return read(url).total.turnover_cents == cents

    until(is_there, within_s=_WAIT_S_MAX, why=f"the turnover is not {cents}")
