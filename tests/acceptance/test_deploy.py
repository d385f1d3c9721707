"""The files of `deploy` in operation: each unit, and each container of a manifest and of compose.

Each runs with and without TLS and users, without systemd, a cluster or a container engine: the test itself sets user,
environment and command line. Only addresses and directories differ. Then each is probed as in its deployment; the
console, which has no endpoint for probes, as a browser does.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner

from tests.integration.cli_harness import said
from tests.orphans import ENDING_WITH_PARENT
from tests.ports import own_port
from tests.runbooks.machine import Machine
from tests.runbooks.user import as_user, open_directory
from tests.unit.test_deploy import COMPOSE, DOCKERFILE, HEALTH, UNITS, containers, from_docker, probes, values_of
from tests.waiting import until
from txmsg.ops.cli.main import main

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
_UID = 61_700
"""Ports of the first role; others have the following ones."""
_STOP_S_MAX = 90.0
_ADDRESS = re.compile(r"(?:[\w.-]|\$\(\w+\))+:(?P<port>7700|7720|7790|8081|97\d0)\b")
_SECURED = """
[{role}.tls]
cert = "/etc/txmsg/tls/server.pem"
key = "/etc/txmsg/tls/server.key"
"""
_ORDER = ("broker", "metaq", "metaq-copy", "tailer", "rocketmq", "agent", "console")
_OF_IMAGE = ("broker", "metaq", "tailer", "rocketmq")


@dataclass(frozen=True, slots=True)
class Part:
    """A process of a deployment: its role, the arguments of `txmsg`, its environment, and its probe command."""

    role: str
    words: Sequence[str]
    environment: Mapping[str, str]
    probed_by: Sequence[Sequence[str]]
    page: str = ""
    """Its URL for a browser, if it has no endpoint for probes."""


@dataclass(slots=True)
class Place:
    """A directory in place of a machine's root, with loopback ports in place of its own."""

    directory: Path
    storage: str
    with_tls: bool
    ports: dict[str, int] = field(default_factory=lambda: defaultdict(own_port))

    def here(self, text: str) -> str:
        """Return the text with addresses and directories of this place."""
        text = re.sub(r"/etc/txmsg|/var/lib", lambda found: f"{self.directory}{found[0]}", text)
        return _ADDRESS.sub(lambda found: f"127.0.0.1:{self.ports[found['port']]}", text)

    def settings(self, path: Path) -> str:
        """Return a file of `deploy` as it is, or secured as docs/how-to/deploy.md describes."""
        text = path.read_text()
        if self.with_tls and path.name == "txmsg.toml":
            text = re.sub(r"^insecure = true.*\n", "", text, flags=re.MULTILINE)
            text = text.replace("[broker]\n", "[broker]\nauthentication = true\n")
            text = text.replace("[metaq]\n", '[metaq]\naccess_from = "broker:7700"\n')
            text += "".join(_SECURED.format(role=role) for role in ("broker", "metaq", "tailer", "rocketmq"))
        return self.here(text)

    def secrets(self, role: str) -> dict[str, str]:
        """Return the variables of a role's environment file or secret."""
        given = {"TXMSG_STORAGE": self.storage} if role in {"broker", "tailer"} else {}
        if self.with_tls:
            given["TXMSG_TLS_CA"] = self.here("/etc/txmsg/tls/ca.pem")
            if role not in {"broker", "console"}:
                given["TXMSG_TOKEN_FILE"] = self.here("/etc/txmsg/ops.token")
        return given


@pytest.fixture
def directory() -> Iterator[Path]:
    with open_directory() as made:
        yield made


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    """A machine with a PostgreSQL that other users can reach, unlike the embedded one."""
    with Machine() as made:
        made.create()
        yield made


@pytest.fixture(params=[False, True], ids=["plain", "with TLS and users"])
def place(request: pytest.FixtureRequest, directory: Path, machine: Machine) -> Place:
    name = f"notify_{own_port()}"
    with psycopg.connect(machine.url("postgres"), autocommit=True, connect_timeout=10) as connection:
        connection.execute(f"create database {name}".encode())
    storage = machine.url(name)
    said("db", "upgrade", "--storage", storage)
    made = Place(directory, storage, request.param)
    etc = directory / "etc" / "txmsg"
    etc.mkdir(parents=True)
    (directory / "var" / "lib").mkdir(parents=True)
    if made.with_tls:
        done = CliRunner().invoke(main, ["cert", "dev", "--dir", str(etc / "tls")])
        assert done.exit_code == 0, done.output
        said("user", "create", "ops", "--role", "admin", "--storage", storage, "--out", str(etc / "ops.token"))
        for secret in (etc / "tls" / "server.key", etc / "ops.token"):
            secret.chmod(0o644)  # whose roles are other users here
        (etc / "tls").chmod(0o755)
    return made


def of_units(place: Place) -> Iterator[Part]:
    """Return the processes that systemd would start, with the probes of docs/operations.md."""
    etc = place.directory / "etc" / "txmsg"
    for path in (DEPLOY / "systemd").glob("*.toml"):
        (etc / path.name).write_text(place.settings(path))
    for unit in UNITS:
        role = unit.stem.removeprefix("txmsg-")
        [line] = values_of(unit, "ExecStart")
        environment = dict(words.split("=", 1) for words in values_of(unit, "Environment"))
        environment = {name: place.here(value) for name, value in environment.items()} | place.secrets(role)
        directories, page, probed_by = values_of(unit, "StateDirectory"), "", []
        if role == "console":
            page = place.here("localhost:7790")
            environment |= {"TXMSG_BROKERS": place.here("broker:7700"), "TXMSG_CONSOLE_LOG": place.here("metaq:7720")}
            environment |= {"TXMSG_CONSOLE_LISTEN": page}
            if place.with_tls:
                for kind, name in (("CERT", "server.pem"), ("KEY", "server.key")):
                    environment[f"TXMSG_CONSOLE_TLS_{kind}"] = place.here(f"/etc/txmsg/tls/{name}")
        elif role == "metaq-copy":  # on another machine, where it has the directory and the ports of a log's server
            directories = ["copy"]
            line = line.replace("${LEADER}", "metaq:7720")
            address = f"127.0.0.1:{own_port()}"
            environment |= {"TXMSG_METAQ_DATA_DIR": place.here("/var/lib/copy"), "TXMSG_METAQ_HTTP_LISTEN": address}
            environment |= {"TXMSG_METAQ_LISTEN": f"127.0.0.1:{own_port()}"}
            probed_by = [["health", address], ["health", address, "--alive"]]
        else:
            text = (etc / ("agent.toml" if role == "agent" else "txmsg.toml")).read_text()
            table = text if role == "agent" else text.partition(f"[{role}]\n")[2]
            address = table.partition("http_listen = ")[2].split('"')[1]
            probed_by = [["health", address], ["health", address, "--alive"]]
        for name in directories:
            (place.directory / "var" / "lib" / name).mkdir(mode=0o700)
        yield Part(role, shlex.split(place.here(line))[1:], environment, probed_by, page)


def of_image(address: str) -> dict[str, str]:
    """Return the environment of the image's containers. address: for probes."""
    found = dict(re.findall(r"\b(TXMSG_\w+)=(\S+)", DOCKERFILE))
    return {name: address if name.endswith("_HTTP_LISTEN") else value for name, value in found.items()}


def of_compose(place: Place) -> Iterator[Part]:
    """Return a service of each kind of compose, in the image's environment, with its health check."""
    [*_, check] = from_docker("CMD")
    assert check == HEALTH
    config = place.directory / "etc" / "txmsg" / "txmsg.toml"
    config.write_text(place.settings(DEPLOY / "kubernetes" / "txmsg.toml"))
    (place.directory / "var" / "lib" / "metaq").mkdir(mode=0o700)
    for name, service in COMPOSE["services"].items():
        role = name.removeprefix("txmsg-").removesuffix("-1")
        if role not in _OF_IMAGE:
            continue  # it ends by itself, is the database, or the second broker
        address = f"127.0.0.1:{own_port()}"
        given = of_image(address) | service["environment"]
        if place.with_tls:  # as docs/how-to/deploy.md has it: in a file of settings, instead of `insecure`
            given = {each: value for each, value in given.items() if not each.endswith("_INSECURE")}
            given |= {"TXMSG_CONFIG": "/etc/txmsg/txmsg.toml"}
        given = {each: place.here(value) for each, value in given.items() if each != "TXMSG_STORAGE"}
        words = [place.here(word) for word in service["command"]]
        probed_by = [[*check[1:], address], [*check[1:], "--alive", address]]
        yield Part(role, words, given | place.secrets(role), probed_by)


def of_manifests(place: Place) -> Iterator[Part]:
    """Return a container of each workload of Kubernetes, in the image's environment."""
    etc = place.directory / "etc" / "txmsg"
    (etc / "txmsg.toml").write_text(place.settings(DEPLOY / "kubernetes" / "txmsg.toml"))
    for container in containers():
        role = container["name"]
        if role not in _ORDER:
            continue  # it ends by itself
        address = f"127.0.0.1:{own_port()}"
        image = of_image(address)
        given = {each["name"]: each.get("value", "txmsg-0") for each in container.get("env", ())}
        environment = {name: place.here(value) for name, value in {**image, **given}.items()}
        environment |= place.secrets(role)
        words = [place.here(word).replace("$(POD_NAME)", "txmsg-0") for word in container["args"]]
        probed_by = [[*probe["exec"]["command"][1:], address] for probe in probes(container)]
        (place.directory / "var" / "lib" / "metaq").mkdir(mode=0o700, exist_ok=True)
        yield Part(role, words, environment, probed_by)


def is_shown(address: str, authority: str | None) -> bool:
    """Return True if a browser gets a page there, with TLS if an authority is given."""
    context = None if authority is None else ssl.create_default_context(cafile=authority)
    url = f"{'http' if authority is None else 'https'}://localhost:{address.rpartition(':')[2]}/"
    with suppress(urllib.error.URLError), urllib.request.urlopen(url, timeout=_STOP_S_MAX, context=context) as answer:
        return b"<html" in answer.read()
    return False


class Running:
    """A running process."""

    def __init__(self, part: Part, place: Place, uid: int) -> None:
        self._part = part
        self._log = place.directory / f"{part.role}.log"
        if os.geteuid() == 0 and (kind := part.role.rpartition("-")[2]) in {"metaq", "copy", "agent"}:
            for path in (place.directory / "var" / "lib").iterdir():
                if kind in path.name:
                    os.chown(path, uid, uid)
        as_own = as_user(uid, uid) if os.geteuid() == 0 else []
        command = [*as_own, *ENDING_WITH_PARENT, sys.executable, "-m", "txmsg.ops.cli.main", *part.words]
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **part.environment}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, cwd="/", env=environment, stdout=log, stderr=log)

    def log(self) -> str:
        return self._log.read_text()

    def is_healthy(self) -> bool:
        assert self._process.poll() is None, f"{self._part.role} has ended:\n{self.log()}"
        if self._part.page:
            return is_shown(self._part.page, self._part.environment.get("TXMSG_TLS_CA"))
        return all(CliRunner().invoke(main, words).exit_code == 0 for words in self._part.probed_by)

    def stop(self) -> None:
        """Stop it with SIGTERM."""
        self._process.send_signal(signal.SIGTERM)
        try:
            status = self._process.wait(_STOP_S_MAX)
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise
        assert status == 0, f"{self._part.role} ended with {status}:\n{self.log()}"


@pytest.mark.parametrize("parts_of", [of_units, of_manifests, of_compose])
def test_each_process_runs_as_its_user_and_is_healthy(
    place: Place, parts_of: Callable[[Place], Iterator[Part]]
) -> None:
    parts = sorted(parts_of(place), key=lambda part: _ORDER.index(part.role))
    assert {part.role for part in parts} == set(_ORDER if parts_of is of_units else _OF_IMAGE)
    with ExitStack() as stack:
        for number, part in enumerate(parts):
            assert len(part.probed_by) >= 2 or part.page
            running = Running(part, place, _UID + number)
            stack.callback(running.stop)
            try:
                until(running.is_healthy)
            except AssertionError as exc:
                raise AssertionError(f"{part.role} is not healthy:\n{running.log()}") from exc
