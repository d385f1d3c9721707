"""Decisions of a demo: which steps are due, when a wait is given up, and which ended process is a failure."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.no_process import NoAudience, ProcesslessChild
from txmsg.ops.demo.director import Director, Patience, Script, Step
from txmsg.ops.demo.stage import DemoProcesses
from txmsg.runtime.child import Child, ChildFailed


def test_steps_are_run_once_in_order_of_their_shares() -> None:
    run: list[str] = []
    script = Script(
        200, [Step(share, partial(run.append, name)) for share, name in ((0.7, "c"), (0.1, "a"), (0.5, "b"))]
    )
    script.run_due(19)
    assert run == []
    script.run_due(20)
    script.run_due(20)
    assert run == ["a"]
    script.run_due(140)
    assert run == ["a", "b", "c"]
    assert script.is_over


def test_a_step_that_is_not_ready_delays_those_after_it() -> None:
    run: list[str] = []
    ready: list[bool] = []
    script = Script(10, [Step(0.1, lambda: run.append("a"), lambda: bool(ready)), Step(0.2, lambda: run.append("b"))])
    script.run_due(10)
    assert (run, script.is_over) == ([], False)
    ready.append(True)
    script.run_due(10)
    assert run == ["a", "b"]


def test_remaining_steps_are_run_at_the_end_even_if_not_ready() -> None:
    run: list[str] = []
    script = Script(10, [Step(0.9, lambda: run.append("a"), lambda: False), Step(1.0, lambda: run.append("b"))])
    script.run_rest()
    assert run == ["a", "b"]
    assert script.is_over


def test_patience_starts_again_with_each_change() -> None:
    patience = Patience(30.0, "before", 100.0)
    assert not patience.is_exhausted("before", 129.0)
    assert not patience.is_exhausted("after", 131.0)
    assert not patience.is_exhausted("after", 160.0)
    assert patience.is_exhausted("after", 161.0)


class CountingDirector(Director[DemoProcesses]):
    """A director that looks without a pause, and counts its looks."""

    look_s = 0.0
    looks = 0

    def read_children(self) -> None:
        self.looks += 1


@pytest.fixture
def director(tmp_path: Path) -> CountingDirector:
    return CountingDirector(DemoProcesses(tmp_path), NoAudience())


def test_the_script_is_run_while_a_condition_is_awaited(director: CountingDirector) -> None:
    done_at: list[int] = []
    director.phase("work", 10, Step(0.5, lambda: done_at.append(director.looks)))
    director.wait(lambda: director.looks == 8, lambda: director.looks)
    assert done_at == [5]


def test_a_wait_without_changes_is_given_up(director: CountingDirector) -> None:
    director.wait(lambda: False, lambda: 0, patience_s=0.0)
    assert director.looks == 0


def test_a_wait_fails_with_a_process_that_ended_by_itself(director: CountingDirector) -> None:
    child = ProcesslessChild("broker")
    director.stage.children["broker"] = child
    child.process.status = 1
    with pytest.raises(ChildFailed, match="broker ended by itself, with exit status 1"):
        director.wait(lambda: False, lambda: 0)


@pytest.mark.parametrize("way", ["kill", "stop"])
def test_a_process_that_was_ended_on_purpose_has_not_failed(director: CountingDirector, way: str) -> None:
    stage = director.stage
    stage.children |= {"broker": ProcesslessChild("broker"), "page": ProcesslessChild("page")}
    getattr(stage, way)("broker")
    stage.require_running()
    assert stage.ready_by_name() == {"page": False}


def test_a_killed_process_that_is_started_again_must_run(tmp_path: Path) -> None:
    stage, again = DemoProcesses(tmp_path), ProcesslessChild("broker")
    stage.start_child("broker", lambda: ProcesslessChild("broker"))
    stage.kill("broker")
    stage.start_child("broker", lambda: again)
    stage.require_running()
    again.process.status = 1
    with pytest.raises(ChildFailed, match="broker ended by itself"):
        stage.require_running()


def test_a_killed_process_is_started_again_as_before_and_counted(tmp_path: Path) -> None:
    started: list[Any] = []

    class RecordingStage(DemoProcesses):
        """A stage that records how processes are started, and starts none."""

        def child(self, name: str, *arguments: str, ready: str = "", **env: str) -> Child:
            started.append((name, arguments, ready, env))
            return ProcesslessChild(name)

    with RecordingStage(tmp_path) as stage:
        first = stage.start("stock", "module", "1", ready="consuming ", STOCK="url")
        stage.kill_and_restart("stock")
        stage.kill_and_restart("stock")
        assert first.returncode is not None
        assert stage.children["stock"].returncode is None
        assert stage.kills == {"stock": 2}
        stage.require_running()
    assert started == [("stock", ("module", "1"), "consuming ", {"STOCK": "url"})] * 3
    assert stage.children["stock"].returncode is not None
