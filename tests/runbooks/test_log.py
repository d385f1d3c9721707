"""docs/runbooks/log.md: machines of a log switch roles, are lost, and return as copies."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.integration.cli_harness import said
from tests.metaq.copies import CopyProcess, until_copied
from tests.metaq.logs import read_around
from tests.metaq.servers import MetaQProcess
from tests.ports import own_port
from tests.runbooks.page import Page
from tests.runbooks.systemctl import systemctl_in
from tests.runbooks.user import ServerUser, open_directory
from tests.waiting import until
from txmsg.message import Message
from txmsg.metaq.location import open_log
from txmsg.metaq.producer import LogProducer
from txmsg.metaq.store.reader import LogReader

LEADER, COPY = "txmsg-metaq", "txmsg-metaq-copy"


class LogMachine:
    """A directory with the two units of a log."""

    def __init__(self, directory: Path, user: ServerUser) -> None:
        self.directory = directory
        self._user = user
        self.data = directory / "data"
        self.address = f"127.0.0.1:{own_port()}"
        self.running: dict[str, MetaQProcess] = {}
        directory.mkdir()

    @contextmanager
    def on(self, other: LogMachine) -> Iterator[None]:
        """Run the units of this machine, with a `systemctl` for them. other: the leader of the copy here."""

        def act(asked: str) -> None:
            verb, name = asked.split()
            if verb == "start":
                if not self.data.exists():
                    self._user.make(self.data)  # StateDirectory= of the unit
                log = self.directory / f"{name}.log"
                if name == LEADER:
                    unit = MetaQProcess(self.data, log=log, address=self.address)
                else:
                    unit = CopyProcess(other.address, self.data, log=log)
                    unit.address = self.address
                unit._spawn = self._user.spawn
                unit.start()
                self.running[name] = unit
            elif (running := self.running.pop(name, None)) is not None:
                assert running.stop() == 0

        self.act = act
        try:
            with systemctl_in(self.directory, act):
                yield
        finally:
            for unit in self.running.values():
                unit.kill()

    def promote(self) -> None:
        """Promote although the leader is lost."""
        command = (
            f"{self._user.prefix} {sys.executable} -m txmsg.ops.cli.main metaq promote {self.data} --leader-is-lost"
        )
        subprocess.run(shlex.split(command), check=True, capture_output=True, timeout=100)

    def crash(self) -> None:
        for unit in self.running.values():
            unit.kill()
        self.running.clear()


def append(machine: LogMachine, body: str) -> None:
    with open_log(machine.address) as log:
        LogProducer(log, queues=1).send(Message("t", body.encode()))


def bodies(data: Path) -> list[str]:
    return [body.decode() for body in read_around(LogReader(data).queue("t", 0)).values()]


@pytest.mark.long  # tests/metaq/test_copy.py shows the same without the page
def test_copy_replaces_its_leader() -> None:
    with open_directory() as machines:
        _change_places(machines)


def _change_places(directory: Path) -> None:
    user = ServerUser()
    first, second = both = LogMachine(directory / "first", user), LogMachine(directory / "second", user)
    places = " ".join(f"[{machine.address}]={shlex.quote(str(machine.directory))}" for machine in both)

    def there(which: str) -> str:
        return f'declare -A places=({places}); cd "${{places[${which}]}}"'

    def names(leader: LogMachine, copy: LogMachine) -> dict[str, str]:
        return {
            "FIRST": leader.address,
            "SECOND": copy.address,
            "FIRST_DATA": str(leader.data),
            "SECOND_DATA": str(copy.data),
        }

    page = Page(
        "log",
        names(first, second),
        {
            f"{what}_{which.lower()}": f'({there(which)}; {command} "$@")'
            for which in ("FIRST", "SECOND")
            for what, command in (("systemctl", "./systemctl"), ("on", user.prefix), ("root", ""))
        },
    )

    def lead(leader: LogMachine, copy: LogMachine) -> None:
        """Make this one the page's first machine from now on."""
        for variable, value in names(leader, copy).items():
            page.set(variable, value)

    with ExitStack() as stack:
        stack.enter_context(first.on(second))
        stack.enter_context(second.on(first))
        first.act(f"start {LEADER}")
        second.act(f"start {COPY}")
        append(first, "one")
        until_copied(first.data, second.data)
        assert "Behind bytes" in page.run("When a copy is behind")
        until_copied(first.data, second.data)
        assert (directory / "second" / "data.damaged").is_dir()

        first.crash()
        told = page.run("When the leader is lost")
        assert "generation" in told
        append(second, "two")
        page.run("When the former leader comes back")
        until_copied(second.data, first.data)

        lead(second, first)
        append(second, "three")
        page.run("Change places")
        append(first, "four")
        until_copied(first.data, second.data)
        until(lambda: bodies(second.data) == ["one", "two", "three", "four"])
        assert "generation" in page.run("Check")
        assert json.loads(said("metaq", "status", "--log", first.address, "--json"))["generation"] == 3

        second.crash()
        append(first, "only here")
        first.crash()
        second.promote()
        second.act(f"start {LEADER}")
        append(second, "five")
        lead(first, second)
        page.run("When it has diverged")
        until_copied(second.data, first.data)
        until(lambda: bodies(first.data) == ["one", "two", "three", "four", "five"])
        assert bodies(directory / "first" / "data.diverged")[-1] == "only here"
        files = [path for place in directory.glob("*/data*") for path in (place, *place.rglob("*"))]
        assert {path.stat().st_uid for path in files} == {user.uid}, "the servers can write each file"
        assert page.left == []
