"""A worker's supervisor with simulated processes that cannot start, die, grow, or write invalid lines."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import pytest

from tests.no_process import ProcesslessChild
from txmsg.client.app.worker import supervisor as module
from txmsg.client.app.worker.reports import series_of
from txmsg.client.app.worker.supervisor import Supervisor, WorkerPlan
from txmsg.metrics.catalogue import ExportingProcess
from txmsg.metrics.figures import Figures
from txmsg.runtime.child import Spawn, spawn_application

CALLS = "txmsg_client_calls_total"


class Child(ProcesslessChild):
    """A child that prints the lines given by the test."""

    made: ClassVar[list[Child]] = []
    on_stop: ClassVar[Callable[[], object]] = staticmethod(lambda: None)

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        log: Callable[[str], object],
        on_line: Callable[[str], object],
        start: Spawn,
    ) -> None:
        assert start is spawn_application, "its modules may lie in the working directory"
        super().__init__(name, command, pid=len(self.made), log=log, on_line=on_line)
        self.say = on_line
        self.made.append(self)

    def stop(self, timeout_s: float = 10.0, signum: int = signal.SIGTERM) -> bool:
        type(self).on_stop()
        return super().stop(timeout_s, signum)


@pytest.fixture(autouse=True)
def children(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Child]]:
    monkeypatch.setattr(module, "Child", Child)
    yield Child.made
    Child.made.clear()
    Child.on_stop = staticmethod(lambda: None)


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def supervisor(lines: list[str]) -> Supervisor:
    return Supervisor(WorkerPlan(app="a:b", processes=1, memory_limit_bytes=10), lambda name, line: lines.append(line))


def starts(supervisor: Supervisor, children: list[Child], seconds: int) -> list[float]:
    """Return the times at which processes were started, with a step each half second."""
    found: list[float] = []
    for now in (n / 2 for n in range(2 * seconds)):
        before = len(children)
        supervisor.step(now)
        found += [now] * (len(children) - before)
        for child in children[before:]:
            child.say('{"ready": true}')
    return found


def test_a_process_that_cannot_be_started_is_retried_with_growing_delays(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch, children: list[Child]
) -> None:
    tries: list[float] = []
    now = 0.0

    def refuse(*_: object, **__: object) -> None:
        tries.append(now)
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(module, "Child", refuse)
    for now in (n / 2 for n in range(20)):
        supervisor.step(now)
    assert tries == [0, 0.5, 1.5, 3.5, 7.5]
    monkeypatch.setattr(module, "Child", Child)
    assert supervisor.unready() == "not ready: worker-1"
    supervisor.step(60.0)
    assert len(children) == 1


def test_processes_that_are_all_too_large_are_replaced_less_and_less_often(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch, children: list[Child]
) -> None:
    monkeypatch.setattr(module, "memory_of", lambda pid: 11)
    found = starts(supervisor, children, 40)
    assert found == [0, 1, 2, 3, 5, 9, 17, 33]
    supervisor.close()
    assert supervisor.pids == []


def test_a_line_that_is_not_a_report_is_logged(supervisor: Supervisor, children: list[Child], lines: list[str]) -> None:
    supervisor.step(0)
    for line in ("printed by sitecustomize", "5", "[1]", '{"ready": tr'):
        children[0].say(line)
    assert supervisor.unready()
    children[0].say('{"ready": true}')
    assert not supervisor.unready()
    assert lines == ["printed by sitecustomize", "5", "[1]", '{"ready": tr']


@pytest.mark.parametrize("is_replaced", [True, False])
def test_counters_never_decrease_when_a_process_ends(
    supervisor: Supervisor, children: list[Child], monkeypatch: pytest.MonkeyPatch, is_replaced: bool
) -> None:
    counted: list[object] = []

    def look() -> None:
        series = {
            (metric.name, labels): value
            for metric, values in supervisor.figures().series()
            for labels, value in values.items()
        }
        counted.append(series[CALLS, ("send",)])

    figures = Figures(ExportingProcess.APPLICATION)
    figures.add(CALLS, 3, messaging_operation_name="send")
    supervisor.step(0)
    children[0].say(json.dumps({"ready": True, "series": series_of(figures)}))
    look()
    Child.on_stop = staticmethod(look)
    collect = Supervisor._collect

    def collect_and_look(*args: Any) -> None:
        collect(*args)
        look()

    monkeypatch.setattr(Supervisor, "_collect", collect_and_look)
    if is_replaced:
        monkeypatch.setattr(module, "memory_of", lambda pid: 11 * (pid == 0))
    else:
        children[0].process.status = -9
    for now in (1, 2, 3, 4):
        supervisor.step(now)
        look()
    assert len(children) == 2
    assert set(counted) == {3}
