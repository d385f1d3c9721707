"""`txmsg worker` with real processes: handled messages, stops, and restarts of dead processes."""

from __future__ import annotations

import json
import os
import re
import signal
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.acceptance.user_project import ROOT
from tests.broker_process import BrokerProcess
from tests.waiting import until
from txmsg.client.app.worker.changes import Changes
from txmsg.client.app.worker.reports import counters_in, put_all, series_of, together
from txmsg.client.app.worker.supervisor import Supervisor, WorkerPlan
from txmsg.client.producer import Producer
from txmsg.client.sending.counts import ProducerCounts
from txmsg.message import Message
from txmsg.metaq import LogAccess, LogProducer, open_log
from txmsg.metrics.catalogue import ExportingProcess
from txmsg.metrics.counts import Histogram
from txmsg.metrics.figures import Figures
from txmsg.runtime.child import Child
from txmsg.runtime.restarts import DELAY_S_MAX, HEALTHY_S, Restarts

APP = "tests.integration.worker_app"
STOP_S_MAX = 60.0


class Worker:
    """A running `txmsg worker` with its notes and its log."""

    def __init__(self, directory: Path, brokers: str, *args: str) -> None:
        self.notes_file = directory / "notes"
        self.log_file = directory / "log"
        self.metaq = directory / "metaq"
        self.child = Child(
            "the worker",
            [
                "txmsg.runtime.child",
                "txmsg.ops.cli.main",
                "worker",
                *args,
                "--json",
            ],  # which ends with a test that is killed
            log=self.log_file,
            ready="{",
            env={
                "TXMSG_BROKERS": brokers,
                "TXMSG_LOG": str(self.metaq),
                "WORKER_NOTES": str(self.notes_file),
                "PYTHONPATH": str(ROOT),
            },
        )

    def ready(self) -> dict[str, object]:
        self.child.wait_ready()
        facts: dict[str, object] = json.loads("{" + self.child.address)
        return facts

    def notes(self) -> list[str]:
        return self.notes_file.read_text().splitlines() if self.notes_file.exists() else []

    def ended(self) -> set[str]:
        return {note.removeprefix("ended ") for note in self.notes() if note.startswith("ended ")}


@contextmanager
def working(directory: Path, brokers: str, *args: str) -> Iterator[Worker]:
    worker = Worker(directory, brokers, *args)
    try:
        yield worker
    finally:
        worker.child.stop(STOP_S_MAX)


def processes_of(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def metrics_of(address: object) -> dict[str, float]:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


def test_a_stop_finishes_running_handlers_and_loses_nothing(broker: BrokerProcess, tmp_path: Path) -> None:
    keys = {str(n) for n in range(20)}
    with Producer(broker.address, group="p") as producer:
        producer.send_many([Message("slow", b"", key=key) for key in keys])
    with working(tmp_path, broker.address, f"{APP}:app", "--processes", "2", "--groups", "slow") as worker:
        worker.ready()
        until(lambda: any(note.startswith("began") for note in worker.notes()))
        processes = processes_of(worker.child.pid)
        for process in [psutil.Process(worker.child.pid), *processes]:
            process.terminate()  # all of them, as systemd does; the supervisor then sends the signal again
        assert worker.child.wait(STOP_S_MAX) == 0
        assert not [process for process in processes if process.is_running()]
        began = {note.split()[1] for note in worker.notes() if note.startswith("began")}
        assert worker.ended() == began
        assert worker.notes().count("left in order") == 2
        assert "printed by a handler" in worker.log_file.read_text()
    with working(tmp_path, broker.address, f"{APP}:app", "--concurrency", "20") as worker:
        until(lambda: worker.ended() == keys)
    began_once = [note.split()[1] for note in worker.notes() if note.startswith("began")]
    assert sorted(began_once) == sorted(keys)  # messages finished at the end were acknowledged


def test_processes_share_the_queues_of_a_log_and_a_stop_finishes_running_handlers(
    tmp_path: Path,
) -> None:
    def append(log: LogAccess, name: str) -> set[str]:
        keys = [f"{name}{n}" for n in range(40)]
        for queue in range(4):
            LogProducer(log).send_many([Message("lines", b"", key=key) for key in keys[queue::4]], queue=queue)
        return set(keys)

    def owners(log: LogAccess) -> list[str]:
        return [each.owner for each in log.group("reader").queues if each.owner and each.queue.topic == "lines"]

    options = (f"{APP}:of_log", "--processes", "2")
    with open_log(tmp_path / "metaq", append=True) as log:
        first = append(log, "a")
        with working(tmp_path, "127.0.0.1:1", *options) as worker:
            worker.ready()
            until(lambda: any(note.startswith("began") for note in worker.notes()))
            worker.child.send_signal(signal.SIGTERM)
            assert worker.child.wait(STOP_S_MAX) == 0
            began = {note.split()[1] for note in worker.notes() if note.startswith("began")}
            assert worker.ended() == began <= first
            assert worker.notes().count("left in order") == 2
            assert log.group("reader").members == ()
        with working(tmp_path, "127.0.0.1:1", *options) as worker:
            until(lambda: worker.ended() == first)
            until(lambda: sorted(Counter(owners(log)).values()) == [2, 2])
            second = append(log, "b")
            until(lambda: worker.ended() == first | second)
    rows = [note.split() for note in worker.notes() if note.startswith("began")]
    assert sorted(row[1] for row in rows) == sorted(first | second)  # those finished at the end are not handled again
    assert len({row[3] for row in rows if row[1] in second}) == 2


def test_handlers_that_print_continue_when_the_log_has_no_reader(broker: BrokerProcess, tmp_path: Path) -> None:
    log = tmp_path / "log"
    os.mkfifo(log)
    reading = os.open(log, os.O_RDONLY | os.O_NONBLOCK)
    with working(tmp_path, broker.address, f"{APP}:app", "--groups", "slow", "--concurrency", "10") as worker:
        worker.ready()
        os.close(reading)
        keys = {str(n) for n in range(10)}
        with Producer(broker.address, group="p") as producer:
            producer.send_many([Message("slow", b"", key=key) for key in keys])
        until(lambda: worker.ended() == keys)
        began = [note for note in worker.notes() if note.startswith("began")]
        assert len(began) == len(keys)  # none was retried
        log.unlink()


def test_a_killed_process_is_restarted_and_its_messages_are_handled(broker: BrokerProcess, tmp_path: Path) -> None:
    options = ("--processes", "2", "--http-listen", "127.0.0.1:0")
    with working(tmp_path, broker.address, f"{APP}:app", *options) as worker:
        facts = worker.ready()
        pids = facts["pids"]
        assert isinstance(pids, list)
        with Producer(broker.address, group="p") as producer:
            producer.send_many([Message("quick", b"", key=f"a{n}") for n in range(50)])
            until(lambda: len(worker.ended()) == 50)
            acknowledged = 'txmsg_client_acknowledged_messages_total{messaging_consumer_group_name="quick"}'
            until(lambda: metrics_of(facts["http"])[acknowledged] == 50)
            os.kill(pids[0], signal.SIGKILL)
            until(lambda: metrics_of(facts["http"])["txmsg_worker_restarts_total"] == 1)
            producer.send_many([Message("quick", b"", key=f"b{n}") for n in range(50)])
            until(lambda: len(worker.ended()) == 100)
        until(lambda: metrics_of(facts["http"])["txmsg_ready"] == 1)
        figures = metrics_of(facts["http"])
        assert figures["txmsg_worker_processes"] == 2
        assert [psutil.pid_exists(pid) for pid in pids] == [False, True]
        assert "ended by SIGKILL" in worker.log_file.read_text()


@pytest.mark.long
def test_processes_end_with_their_killed_supervisor(broker: BrokerProcess, tmp_path: Path) -> None:
    with working(tmp_path, broker.address, f"{APP}:app") as worker:
        worker.ready()
        processes = processes_of(worker.child.pid)
        assert processes
        os.kill(worker.child.pid, signal.SIGKILL)
        until(lambda: not any(process.is_running() for process in processes))
        assert worker.notes() == ["left in order"]


@pytest.mark.long
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, 1)])
def test_a_second_signal_ends_all_processes_at_once(
    number: signal.Signals, status: int, broker: BrokerProcess, tmp_path: Path
) -> None:
    options = ("--groups", "endless", "--drain", "10m", "--http-listen", "127.0.0.1:0")
    with working(tmp_path, broker.address, f"{APP}:app", *options) as worker:
        facts = worker.ready()
        with Producer(broker.address, group="p") as producer:
            producer.send(Message("endless", b""))
        until(lambda: worker.notes() == ["began to wait"])
        processes = processes_of(worker.child.pid)
        worker.child.send_signal(number)
        until(lambda: metrics_of(facts["http"])["txmsg_ready"] == 0)  # it has begun to end them
        worker.child.send_signal(number)
        assert worker.child.wait(STOP_S_MAX) == status
        until(lambda: not any(process.is_running() for process in processes))
        assert worker.notes() == ["began to wait"]


@pytest.mark.long
def test_a_second_ctrl_c_ends_an_application_whose_handler_never_returns(broker: BrokerProcess, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    environment = {"TXMSG_BROKERS": broker.address, "WORKER_NOTES": str(notes), "PYTHONPATH": str(ROOT)}
    child = Child("the application", [APP], log=tmp_path / "log", env=environment)
    try:
        with Producer(broker.address, group="p") as producer:
            producer.send(Message("endless", b""))
        until(lambda: notes.exists() and notes.read_text() == "began to wait\n")
        child.send_signal(signal.SIGINT)
        until(lambda: "stops" in notes.read_text())
        child.send_signal(signal.SIGINT)
        assert child.wait(STOP_S_MAX) == -signal.SIGINT
    finally:
        child.kill()
        child.stop(STOP_S_MAX)


@pytest.mark.long
def test_handlers_longer_than_the_drain_time_are_left_and_the_rest_stops_cleanly(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    with working(tmp_path, broker.address, f"{APP}:app", "--groups", "endless", "--drain", "200ms") as worker:
        worker.ready()
        with Producer(broker.address, group="p") as producer:
            producer.send(Message("endless", b""))
        until(lambda: worker.notes() == ["began to wait"])
        worker.child.send_signal(signal.SIGTERM)
        assert worker.child.wait(STOP_S_MAX) == 0
        assert worker.notes() == ["began to wait", "left in order"]
        assert "handlers still ran after 0.2 s" in worker.log_file.read_text()


@pytest.mark.long
def test_an_application_that_cannot_start_is_retried_with_growing_delays(broker: BrokerProcess, tmp_path: Path) -> None:
    with working(tmp_path, broker.address, f"{APP}:broken") as worker:
        delays = re.compile(r"worker-1 ended with exit status 1 .*starts in (\S+) s")
        until(lambda: len(delays.findall(worker.log_file.read_text())) >= 3)
        assert delays.findall(worker.log_file.read_text())[:3] == ["0.5", "1", "2"]
        assert "the database of the application is away" in worker.log_file.read_text()
        assert not worker.child.is_ready


@pytest.mark.parametrize(
    ("app", "said"),
    [
        ("no_such_module_at_all:app", "there is no module"),
        (f"{APP}:nothing", "has no 'nothing'"),
        (f"{APP}:empty", "has no subscriptions"),
    ],
)
def test_an_application_that_can_never_run_is_reported_once(app: str, said: str, tmp_path: Path) -> None:
    with working(tmp_path, "localhost:1", app) as worker:
        assert worker.child.wait(STOP_S_MAX) == 1
    error = json.loads(worker.log_file.read_text().splitlines()[-1])["error"]
    assert said in error["text"]


@pytest.mark.long
def test_a_process_that_grew_too_large_is_replaced(broker: BrokerProcess, tmp_path: Path) -> None:
    with working(tmp_path, broker.address, f"{APP}:app", "--memory-limit", "1MiB") as worker:
        first = worker.ready()["pids"]
        assert isinstance(first, list)
        until(lambda: "more than 1048576" in worker.log_file.read_text())
        until(lambda: not psutil.pid_exists(first[0]))
        assert "left in order" in worker.notes()


def test_a_changed_file_replaces_all_processes(tmp_path: Path) -> None:
    module = tmp_path / "of_test.py"
    module.write_text("from txmsg import Txmsg\napp = Txmsg('localhost:1', group='g')\napp.subscribe('t')(print)\n")
    lines: list[str] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(tmp_path)
        supervisor = Supervisor(
            WorkerPlan(app="of_test:app", processes=1, reload=tmp_path), lambda name, line: lines.append(line)
        )
        now = 0.0
        try:

            def stepped() -> bool:
                nonlocal now
                now += 1
                supervisor.step(now)
                return not supervisor.unready()

            until(stepped)
            (first,) = supervisor.pids
            module.write_text(module.read_text() + "# changed\n")
            until(lambda: stepped() and supervisor.pids != [first], why="\n".join(lines))
        finally:
            supervisor.close()
    assert not psutil.pid_exists(first)


def test_restart_delays_grow_until_a_process_has_run_for_long() -> None:
    restarts = Restarts()
    assert [restarts.delay_s(0.1) for _ in range(9)] == [0.5, 1, 2, 4, 8, 16, 32, DELAY_S_MAX, DELAY_S_MAX]
    assert restarts.delay_s(HEALTHY_S) == 0.5


def test_only_modules_of_the_application_are_watched_for_changes(tmp_path: Path) -> None:
    for name in ("a.py", "b.py", ".venv/c.py", "data.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("1")
    changes = Changes(tmp_path)
    assert changes.since_last() is None
    (tmp_path / ".venv" / "d.py").write_text("2")
    (tmp_path / "data.txt").write_text("3")
    assert changes.since_last() is None
    (tmp_path / "b.py").unlink()
    assert changes.since_last() == "b.py"
    assert changes.since_last() is None


def test_counters_of_an_ended_process_are_kept_and_its_gauges_are_not() -> None:
    counts = ProducerCounts()
    counts.send.calls = 3
    counts.send.seconds.observe(0.1)
    figures = Figures(ExportingProcess.APPLICATION)
    counts.put_figures(figures)
    figures.add("txmsg_client_pending_items", 5)
    report = json.loads(json.dumps(series_of(figures)))
    sum_ = put_all(Figures(ExportingProcess.WORKER), [together([report, counters_in(report)])])
    found = {(metric.name, labels): value for metric, values in sum_.series() for labels, value in values.items()}
    assert found["txmsg_client_calls_total", ("send",)] == 6
    assert found["txmsg_client_pending_items", ()] == 5
    seconds = found["txmsg_client_request_seconds", ("send",)]
    assert isinstance(seconds, Histogram)
    assert seconds.count == 2
