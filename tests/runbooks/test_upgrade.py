"""docs/runbooks/upgrade.md under load: every acknowledged message is delivered, and no call fails."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import txmsg
from tests.acceptance.neighbour import neighbour
from tests.acceptance.releases import NOW, Release, next_release
from tests.broker_process import BrokerProcess
from tests.runbooks.machine import Machine
from tests.runbooks.notify import DATABASE, create_notify
from tests.runbooks.page import Page
from tests.runbooks.systemctl import systemctl_in
from txmsg.broker import migrate

BROKERS = 2
NEXT_VERSION, NEXT_REVISION = "99.0.0", "9999"
_INSTALLED = "installed"


class BrokerMachine:
    """A directory with the installed releases, and a `systemctl` that stops and starts the broker."""

    def __init__(self, directory: Path, storage: str) -> None:
        self.directory = directory
        self.pids: list[int] = []
        directory.mkdir()
        (directory / f"{_INSTALLED}-{txmsg.__version__}").symlink_to(NOW.path)
        (directory / _INSTALLED).symlink_to(f"{_INSTALLED}-{txmsg.__version__}")
        self._storage = storage
        self._broker = self._installed(None)
        self.address = self._broker.address

    def _installed(self, address: str | None) -> BrokerProcess:
        release = Release((self.directory / _INSTALLED).resolve())
        log = self.directory / "broker.log"
        return BrokerProcess(self._storage, log=log, address=address, environment=release.environment)

    @contextmanager
    def running(self) -> Iterator[None]:
        self._start()
        try:
            with systemctl_in(self.directory, self._act):
                yield
        finally:
            self._broker.kill()

    def _act(self, asked: str) -> None:
        self._start() if asked.startswith("start ") else self._stop()

    def _start(self) -> None:
        self._broker = self._installed(self.address)
        self._broker.start()
        self.pids.append(self._broker.pid)

    def _stop(self) -> None:
        assert self._broker.stop() == 0


def install_program(release: Release) -> None:
    """Install `bin/txmsg`, which can be called from anywhere."""
    program = release.path / "bin" / "txmsg"
    program.parent.mkdir()
    variables = f"PYTHONPATH={shlex.quote(str(release.path))} PYTHONSAFEPATH=1"
    program.write_text(f'#!/bin/sh\n{variables} exec {shlex.quote(sys.executable)} -m txmsg.ops.cli.main "$@"\n')
    program.chmod(0o755)


@pytest.mark.long  # tests/acceptance/test_rolling_upgrade.py shows the same without the page
def test_brokers_are_upgraded_one_by_one_with_only_a_pause_for_clients(tmp_path: Path) -> None:
    following = next_release(tmp_path / "next", version=NEXT_VERSION, revision=NEXT_REVISION)
    install_program(following)
    with ExitStack() as stack:
        server = stack.enter_context(Machine())
        create_notify(server)
        notify = server.url(DATABASE)
        machines = [BrokerMachine(tmp_path / f"machine-{number}", notify) for number in range(BROKERS)]
        for machine in machines:
            stack.enter_context(machine.running())
        addresses = [machine.address for machine in machines]
        places = " ".join(f"[{machine.address}]={shlex.quote(str(machine.directory))}" for machine in machines)
        there = f'declare -A places=({places}); cd "${{places[$1]}}"'
        page = Page(
            "upgrade",
            {
                "NOTIFY": notify,
                "BROKERS": " ".join(addresses),
                "INSTALLED": _INSTALLED,
                "RELEASE": NEXT_VERSION,
            },
            {
                "on_broker": f'({there}; PATH="$PWD:$PATH" "${{@:2}}")',
                "install_on": f'({there}; ln -s {following.path} "$INSTALLED-$RELEASE")',
            },
        )
        with neighbour(",".join(addresses)) as clients:
            clients.goes_on()
            page.run("Install")
            page.run("Upgrade the database")
            assert migrate.current(notify) == NEXT_REVISION
            clients.goes_on()
            page.run("Replace the brokers")
            clients.goes_on()
            assert page.run("Check").count(f"{NEXT_VERSION}, broker") == BROKERS
        assert clients.errors == []
        assert page.left == []
        assert all(len(machine.pids) == 2 for machine in machines)
        print(f"upgrade: longest pause of sends {clients.pause_s_max:.1f} s")
