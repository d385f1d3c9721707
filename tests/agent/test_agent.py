"""`txmsg agent` as a process with a log server and the real logrotate: kills, outages, settings."""

from __future__ import annotations

import json
import random
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.agent import play
from tests.integration.cli_harness import json_of, said
from tests.metaq.servers import MetaQProcess
from tests.metrics.scraping import got, require_catalogued, scrape
from tests.ports import own_port
from tests.restartable import Restartable
from tests.tools import HOW_TO_INSTALL_LOGROTATE
from tests.waiting import until
from txmsg.message import ReceivedMessage
from txmsg.metaq import LogQueue, open_log
from txmsg.metaq.interface import LogAccess
from txmsg.metrics.catalogue import ExportingProcess
from txmsg.ops.cli.main import main

needs_logrotate = pytest.mark.skipif(shutil.which("logrotate") is None, reason=HOW_TO_INSTALL_LOGROTATE)


class AgentProcess(Restartable):
    """`txmsg agent run` on a file of settings that tests may write again."""

    ready = "following "

    def __init__(self, directory: Path, server: str, topic: str) -> None:
        super().__init__("the agent", directory / "agent.log")
        self.directory = directory
        self.topic = topic
        self.logs = directory / "logs"
        self.logs.mkdir()
        self.path = self.logs / "app.log"
        self.file = directory / "agent.toml"
        self.metrics = f"127.0.0.1:{own_port()}"
        self._server = server
        self.configure()

    def configure(self, *settings: str) -> None:
        lines = [
            f'log = "{self._server}"',
            f'state_dir = "{self.directory / "state"}"',
            f'name = "{self.topic}"',
            f'http_listen = "{self.metrics}"',
            "[source.app]",
            f'paths = ["{self.logs}/*.log"]',
            f'topic = "{self.topic}"',
            "queues = 1",
            "linger_s = 0.02",
            *settings,
        ]
        self.file.write_text("\n".join(lines))

    def arguments(self) -> list[str]:
        return ["agent", "run", str(self.file)]

    def write(self, *lines: str) -> None:
        with open(self.path, "a") as file:
            file.write("".join(f"{line}\n" for line in lines))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MetaQProcess]:
    directory = tmp_path_factory.mktemp("metaq")
    with MetaQProcess(directory / "log", log=directory / "metaq.log") as server:
        yield server


@pytest.fixture(scope="module")
def log(server: MetaQProcess) -> Iterator[LogAccess]:
    with open_log(server.address) as log:
        yield log


@pytest.fixture
def agent(server: MetaQProcess, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[AgentProcess]:
    agent = AgentProcess(tmp_path, server.address, request.node.name[:100])
    yield agent
    agent.kill()


def _messages(log: LogAccess, topic: str) -> list[ReceivedMessage]:
    queue = LogQueue(topic, 0)
    end, offset = log.ranges([queue])[queue].end, 0
    messages: list[ReceivedMessage] = []
    while offset < end:
        [found] = log.fetch({queue: offset})
        assert found.error is None
        messages += [message for batch in found.batches for message in batch.messages()]
        offset = found.batches[-1].end_offset
    return messages


def _last(log: LogAccess, topic: str) -> bytes:
    queue = LogQueue(topic, 0)
    end = log.ranges([queue])[queue].end
    if not end:
        return b""
    [found] = log.fetch({queue: end - 1})
    return [message.body for batch in found.batches for message in batch.messages()][-1]


def _in_effect(log: LogAccess, topic: str) -> list[str]:
    """Return the lines in order, without repeats of an id."""
    return [message.body.decode() for message in {each.id: each for each in _messages(log, topic)[::-1]}.values()][::-1]


def test_agent_writes_its_status_and_metrics(agent: AgentProcess, log: LogAccess) -> None:
    assert "is right: 1 sources into" in said("agent", "check", str(agent.file))
    assert json_of("agent", "check", str(agent.file))["sources"][0]["topic"] == agent.topic
    assert "no agent has run with this state_dir" in said("agent", "status", str(agent.file), status=1)
    agent.write("one", "two")
    agent.start()
    until(lambda: _in_effect(log, agent.topic) == ["one", "two"])
    told = until(
        lambda: found if (found := json_of("agent", "status", str(agent.file)))["sources"]["app"]["lines"] else None
    )
    assert told["runs"]
    assert told["sources"]["app"] | {"lines": 2, "unread_bytes": 0, "held": "", "log": ""} == told["sources"]["app"]
    found = scrape(agent.metrics)
    require_catalogued(found, ExportingProcess.AGENT)
    assert found.value("txmsg_agent_lines_total", source="app") == 2
    assert got(agent.metrics, "/readyz") == (200, "ok\n")
    assert got(agent.metrics, "/livez") == (200, "ok\n")
    assert "used by another agent" in said("agent", "run", str(agent.file), status=1)
    agent.write("three")
    assert agent.stop() == 0
    left = agent.directory / "state" / "gone.spool"
    left.mkdir()
    (left / "00000001.spool").write_bytes(b"lines")
    agent.start()
    assert "has 5 bytes of a source that the agent's file does not name" in agent.log.read_text()
    agent.write("four")
    until(lambda: _in_effect(log, agent.topic)[-1:] == ["four"])
    assert [message.body for message in _messages(log, agent.topic)] == [b"one", b"two", b"three", b"four"]


def test_source_with_damaged_spool_does_not_stop_other_sources(agent: AgentProcess, log: LogAccess) -> None:
    path = agent.directory / "other.log"
    path.write_text("waits\n")
    agent.configure("[source.other]", f'paths = ["{path}"]', f'topic = "{agent.topic}"', "queues = 1")
    spool = agent.directory / "state" / "other.spool"
    spool.mkdir(parents=True)
    for name in ("00000001.spool", "00000002.spool"):
        (spool / name).write_bytes(b"x" * 100)
    agent.write("one")
    agent.start()
    until(lambda: _in_effect(log, agent.topic) == ["one"])
    found = until(lambda: found if (found := scrape(agent.metrics)).value("txmsg_agent_held", source="other") else None)
    require_catalogued(found, ExportingProcess.AGENT)
    assert found.value("txmsg_agent_held", source="app") == 0
    assert got(agent.metrics, "/livez") == (200, "ok\n")
    held = until(lambda: _status(agent, "other")["held"])
    assert "00000001.spool is damaged at byte 0" in held
    assert "move the file away" in held
    assert "source other reads nothing" in agent.log.read_text()
    assert agent.stop() == 0


def test_settings_can_change_while_agent_runs(agent: AgentProcess, log: LogAccess) -> None:
    agent.configure("paused = true")
    agent.write("one")
    agent.start()
    until(lambda: got(agent.metrics, "/metrics")[1].count('txmsg_agent_paused{source="app"} 1.0'))
    agent.configure("paused = false")
    agent.child.send_signal(signal.SIGHUP)
    until(lambda: _in_effect(log, agent.topic) == ["one"])

    changed = json_of(
        "agent", "set", str(agent.file), "paused=true", "lines_per_s=500", "--agents", f"{agent.topic[:-1]}?"
    )
    assert changed["changes"][0]["value"] is True
    until(lambda: scrape(agent.metrics).value("txmsg_agent_paused", source="app") == 1)
    agent.write("two")
    agent.restart(kill=True)
    until(lambda: scrape(agent.metrics).value("txmsg_agent_paused", source="app") == 1)
    assert _in_effect(log, agent.topic) == ["one"]
    said("agent", "set", str(agent.file), "paused=", "--agents", f"{agent.topic[:-1]}?")
    until(lambda: _in_effect(log, agent.topic) == ["one", "two"])
    assert "lines_per_s" in said("agent", "set", str(agent.file), "topic=x", status=1)
    assert "give fast=VALUE" in said("agent", "set", str(agent.file), "fast", status=2)


@pytest.mark.long
def test_no_line_is_lost_when_agent_is_killed_and_server_is_down(
    agent: AgentProcess, server: MetaQProcess, log: LogAccess
) -> None:
    stopped = threading.Event()
    written = 1
    agent.write("0")
    agent.start()
    until(lambda: _last(log, agent.topic) == b"0")
    agent.kill()

    def write() -> None:
        nonlocal written
        while not stopped.is_set():
            agent.write(*(f"{number} {'x' * 80}" for number in range(written, written + 200)))
            written += 200
            if random.random() < 0.1:
                agent.path.rename(agent.logs / f"app.log.{written}")
            stopped.wait(0.01)

    writing = threading.Thread(target=write)
    writing.start()
    try:
        for number in range(3):
            agent.start()
            stopped.wait(random.uniform(0.0, 0.5))
            if number == 0:
                server.kill()
            if number == 2:
                server.start()
            agent.kill()
        agent.start()
    finally:
        stopped.set()
        writing.join()
    agent.write("last")
    until(lambda: _last(log, agent.topic) == b"last")
    numbers = [int(line.split()[0]) for line in _in_effect(log, agent.topic)[:-1]]
    assert numbers == list(range(written))


@needs_logrotate
@pytest.mark.parametrize("copytruncate", [False, pytest.param(True, marks=pytest.mark.long)])
def test_logrotate_neither_loses_nor_reorders_lines(tmp_path: Path, copytruncate: bool) -> None:
    found = play(tmp_path, rate=3000, seconds=4, away_s=1, kills=1, copytruncate=copytruncate)
    assert found.is_right, found
    assert found.rotations >= 2
    assert found.lines >= 5_000


@needs_logrotate
@pytest.mark.long
@pytest.mark.parametrize("copytruncate", [False, True])
def test_no_line_of_a_million_is_lost_under_logrotate_kills_and_outages(tmp_path: Path, copytruncate: bool) -> None:
    found = play(tmp_path, rate=30_000, seconds=35, away_s=8, kills=5, copytruncate=copytruncate)
    assert found.is_right, found
    assert found.lines >= 1_000_000
    assert found.rotations >= 10


@pytest.mark.long
def test_lines_wait_for_server_that_has_not_started_yet(tmp_path: Path) -> None:
    agent = AgentProcess(tmp_path, f"127.0.0.1:{own_port()}", "t")
    agent.file.write_text('log_format = "json"\n' + agent.file.read_text())
    agent.write("waits")
    agent.start()
    events = until(lambda: [line for line in agent.log.read_text().splitlines() if "spool.waiting" in line])
    assert json.loads(events[0])["size_bytes"] > 0
    assert "cannot be reached" in until(lambda: _status(agent)["log"])
    assert _status(agent)["spool_bytes"] > 0
    assert agent.stop() == 0


def _status(agent: AgentProcess, source: str = "app") -> dict[str, Any]:
    """Return the status of a source. The exit status is 1 while it waits."""
    found = CliRunner().invoke(main, ["agent", "status", str(agent.file), "--json"])
    told: dict[str, Any] = json.loads(found.stdout)["sources"][source]
    return told
