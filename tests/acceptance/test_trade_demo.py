"""The trade dashboard runs small, with real processes, and page, trade database and log agree to the cent."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.kafka_server import PrivateKafka
from tests.spark.kafka_jars import kafka_jars
from tests.waiting import until
from txmsg.metaq import LogQueue, open_log
from txmsg.ops.demo.browser import find_browser
from txmsg.ops.demo.trades.load import Load, steps

COMMAND = [sys.executable, "-m", "txmsg.ops.cli.main", "demo", "trades"]


@pytest.mark.long
@pytest.mark.takes_long
@pytest.mark.timeout(600)
def test_all_totals_agree_although_service_broker_tailer_and_spark_are_killed(tmp_path: Path) -> None:
    keep = tmp_path / "kept"
    arguments = ["--rate", "100", "--seconds", "6", "--seed", "5", "--kill", "--json", "--keep", str(keep)]
    run = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=550, check=False)
    assert run.returncode == 0, run.stderr[-5000:]

    result = json.loads(run.stdout.splitlines()[-1])
    signs = {"paid": 1, "refunded": -1}
    planned = list(steps(Load(rate=100, seconds=6, seed=5)))
    turnover_cents = sum(signs.get(step.event, 0) * step.order.amount_cents for step in planned)
    assert result["trades"] == len(planned) == 600
    assert result["turnover_cents"] == dict.fromkeys(("database", "log", "dashboard"), turnover_cents)
    assert result["equal"] is True
    assert result["stock_oversold"] == 0
    assert result["stock_short"] > 0, "nothing ran out of stock, so nothing was tried"
    assert result["kills"] == {"trade_service": 1, "broker": 1, "tailer": 1, "spark": 1}
    assert result["latency_ms"].keys() == {"stored", "page"}
    assert all(0 < each["p50"] <= each["p99"] for each in (*result["latency_ms"].values(), result["spark_batch_ms"]))
    assert result["page_read_by"] == ("connection" if find_browser() is None else "browser")
    until(lambda: not _left_over(keep))


@pytest.mark.long
@pytest.mark.takes_long
@pytest.mark.timeout(900)
def test_all_totals_agree_on_a_three_node_kafka_with_one_node_killed(
    kafka_cluster: PrivateKafka, kafka_prefix: str, tmp_path: Path
) -> None:
    """The node is killed after the first trades and stays down; processes of the demo are killed as well."""
    where = f"{kafka_cluster.address}/{kafka_prefix}"
    options = ["--rate", "60", "--seconds", "10", "--seed", "5", "--kill", "--json", "--no-browser"]
    command = [*COMMAND, *options, "--log", where, "--kafka-jars", str(kafka_jars())]
    with (tmp_path / "stderr").open("w") as stderr, open_log(where) as log:
        run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)

        def has_trades() -> bool:
            assert run.poll() is None, (tmp_path / "stderr").read_text()[-5000:]
            queues = [LogQueue("trade.order", number) for number in log.queues_of("trade.order")]
            return sum(kept.end for kept in log.ranges(queues).values()) > 50

        try:
            until(has_trades, within_s=400, why="no trade came to Kafka")
            kafka_cluster.nodes[0].kill()
            stdout, _ = run.communicate(timeout=450)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the demo does not end:\n{(tmp_path / 'stderr').read_text()[-5000:]}")
        finally:
            run.terminate()  # which ends its processes; one that has ended is left alone
            run.wait(60)
            kafka_cluster.nodes[0].start()
            kafka_cluster.wait_until_ready()
    assert run.returncode == 0, (tmp_path / "stderr").read_text()[-5000:]
    result = json.loads(stdout.splitlines()[-1])
    [turnover_cents] = set(result["turnover_cents"].values())
    assert result["trades"] == 600
    assert turnover_cents > 0
    assert result["kills"] == {"trade_service": 1, "broker": 1, "tailer": 1, "spark": 1}


def test_an_unusable_kafka_is_refused_before_anything_starts() -> None:
    for where, why in (("localhost:9092", "not the address of a Kafka"), ("kafka://127.0.0.1:1", "127.0.0.1:1")):
        command = [*COMMAND, "--log", where]
        run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert run.returncode in (1, 2), run.stderr
        assert why in run.stderr
        assert "Traceback" not in run.stderr


def test_a_day_without_a_trade_is_refused_before_anything_starts() -> None:
    run = subprocess.run([*COMMAND, "--rate", "0.001"], capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 2
    assert "not even one trade" in run.stderr


def _left_over(keep: Path) -> list[list[str]]:
    """Return programs that still run with this directory."""
    found: list[list[str]] = []
    for process in psutil.process_iter(["cmdline", "environ"]):
        command, environ = process.info["cmdline"] or [], process.info["environ"] or {}
        if any(str(keep) in word for word in (*command, *environ.values())):
            found.append(command)
    return found
