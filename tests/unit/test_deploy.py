"""The files of `deploy` fit txmsg: each command line, variable, key, port and grace period.

No engine runs them here. Their form is checked as well: units by systemd, manifests by Kubernetes' own schemas, the
rest by a parser.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from txmsg.broker.config import BrokerConfig
from txmsg.broker.server import stop_s_max
from txmsg.metaq.agent.agent_config import read_agent_file
from txmsg.ops.cli.config import CONFIGS, config_of
from txmsg.ops.cli.main import main
from txmsg.settings.catalogue import settings_of
from txmsg.settings.sources import CONFIG_VARIABLE, SCOPES, from_environment, from_file

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("[!k]*.yaml"))
COMPOSE = yaml.safe_load((DEPLOY / "docker" / "compose.yaml").read_text())
DOCKERFILE = (DEPLOY / "docker" / "Dockerfile").read_text().replace("\\\n", " ")
PAGE = (ROOT / "docs" / "how-to" / "deploy.md").read_text()
SETTINGS = {each.variable: each for scope in CONFIGS for each in settings_of(config_of(scope), scope)}
HEALTH = ["txmsg", "health"]
ON_REQUEST = {"TXMSG_STORAGE": "postgresql://notify@db/notify"}
"""The contents of secrets."""


def documents() -> list[dict[str, Any]]:
    return [found for path in MANIFESTS for found in yaml.safe_load_all(path.read_text())]


def pods() -> dict[str, dict[str, Any]]:
    """Return the pod template of each workload by name."""
    return {
        found["metadata"]["name"]: found["spec"]["template"]["spec"]
        for found in documents()
        if "template" in found["spec"]
    }


def containers() -> list[dict[str, Any]]:
    return [each for pod in pods().values() for each in (*pod.get("initContainers", ()), *pod["containers"])]


def probes(container: dict[str, Any]) -> list[dict[str, Any]]:
    return [value for name, value in container.items() if name.endswith("Probe")]


def values_of(unit: Path, key: str) -> list[str]:
    return re.findall(rf"^{key}=-?(.*)$", unit.read_text(), re.MULTILINE)


def from_docker(word: str) -> list[list[str]]:
    return [yaml.safe_load(found) for found in re.findall(rf"\b{word} (\[.*\])$", DOCKERFILE, re.MULTILINE)]


def command_lines() -> Iterator[list[str]]:
    """Return all command lines that begin with txmsg."""
    for unit in UNITS:
        for line in values_of(unit, "Exec[A-Za-z]*"):
            program, *words = shlex.split(line)
            if Path(program).name == "txmsg":
                yield ["txmsg", *words]
    [entry], [health_check, *_] = from_docker("ENTRYPOINT"), from_docker("CMD")[::-1]
    yield from ([*entry, *words] for words in from_docker("CMD")[:1])
    yield health_check
    for service in COMPOSE["services"].values():
        if service["image"].startswith("txmsg"):
            yield [*entry, *service["command"]]
    for container in containers():
        yield [*entry, *container["args"]]
        yield from (probe["exec"]["command"] for probe in probes(container))
    for text in (PAGE, *(path.read_text() for path in DEPLOY.rglob("*.toml"))):
        for line in re.findall(r"(?:^    |`)(txmsg [a-z][^`\n]*)", text, re.MULTILINE):
            yield shlex.split(line, comments=True)


LINES = sorted({tuple(each) for each in command_lines()})


def test_command_lines_are_found_in_the_files() -> None:
    assert {" ".join(each) for each in LINES} >= {
        "txmsg broker",
        "txmsg health",
        "txmsg health --alive",
        "txmsg metaq serve",
        "txmsg tailer run --metaq metaq:7720",
        "txmsg metaq serve --data-dir /var/lib/metaq/log",
        "txmsg rocketmq",
    }


@pytest.mark.parametrize("words", [pytest.param(each, id=" ".join(each)) for each in LINES])
def test_every_command_line_is_valid(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ON_REQUEST.items():
        monkeypatch.setenv(name, value)
    command: click.Command = main
    context = click.Context(main)
    left = list(words[1:])
    while isinstance(command, click.Group):
        _, found, left = command.resolve_command(context, left)
        assert found is not None
        command, context = found, click.Context(found, parent=context)
    command.parse_args(context, left)  # raises the error that the user would see


def test_a_command_line_with_a_typing_error_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    for words in (["broker", "--advertize", "x"], ["metaq", "serv"], ["broker", "--retention", "lots"]):
        with pytest.raises(click.UsageError):
            test_every_command_line_is_valid(("txmsg", *words), monkeypatch)


def variables() -> Iterator[tuple[str, str]]:
    """Yield all txmsg variables that are set, with their values."""
    for unit in UNITS:
        yield from (line.split("=", 1) for line in values_of(unit, "Environment"))  # type: ignore[misc]
    yield from re.findall(r"\b(TXMSG_\w+)=(\S+)", DOCKERFILE)
    for service in COMPOSE["services"].values():
        yield from service.get("environment", {}).items()
    for container in containers():
        for each in container.get("env", ()):
            yield each["name"], each.get("value", ON_REQUEST.get(each["name"], ""))


def test_every_variable_sets_a_valid_value() -> None:
    found = {name: value for name, value in variables() if name.startswith("TXMSG_")}
    assert {"TXMSG_CONFIG", "TXMSG_STORAGE", "TXMSG_METAQ_DATA_DIR"} <= found.keys()
    for name, value in found.items():
        if name == CONFIG_VARIABLE:
            assert value == "/etc/txmsg/txmsg.toml"
        else:
            from_environment({name: value}, [SETTINGS[name]])  # raises MisuseError


@pytest.mark.parametrize("path", sorted(DEPLOY.rglob("txmsg.toml")), ids=lambda path: path.parent.name)
def test_settings_files_have_only_valid_keys_and_values(path: Path) -> None:
    given = {scope: from_file(path, list(settings_of(config_of(scope), scope))) for scope in SCOPES}
    assert all(given.values())


def test_the_agent_file_and_unit_agree() -> None:
    [path] = DEPLOY.rglob("agent.toml")
    unit = DEPLOY / "systemd" / "txmsg-agent.service"
    assert read_agent_file(path).agent.state_dir == Path("/var/lib") / values_of(unit, "StateDirectory")[0]
    assert f"/etc/txmsg/{path.name}" in values_of(unit, "ExecStart")[0]


def role_of(unit: Path) -> str:
    return unit.stem.removeprefix("txmsg-").removesuffix("-copy")  # a copy takes the place of its server


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_each_role_has_its_own_user_and_its_own_secrets(unit: Path) -> None:
    role = role_of(unit)
    assert values_of(unit, "User") == values_of(unit, "Group") == [f"txmsg-{role}"]
    assert values_of(unit, "EnvironmentFile") == [f"/etc/txmsg/{role}.env"]
    [roles] = re.findall(r"^    for role in (.*); do$", PAGE, re.MULTILINE)
    assert role in roles.split()
    assert re.search(rf"^  \|.*`{role}`.*\|", PAGE, re.MULTILINE), "the page says what its file holds"


def test_no_two_workloads_share_a_secret() -> None:
    """The page creates no unused secret, either."""
    secrets = {
        name: {
            each["valueFrom"]["secretKeyRef"]["name"]
            for container in (*pod.get("initContainers", ()), *pod["containers"])
            for each in container.get("env", ())
            if "secretKeyRef" in each.get("valueFrom", ())
        }
        for name, pod in pods().items()
    }
    found = [secret for of_pod in secrets.values() for secret in of_pod]
    assert sorted(found) == sorted(re.findall(r"create secret generic (\S+)", PAGE)) == ["txmsg-broker", "txmsg-tailer"]
    with_storage = {name for name, service in COMPOSE["services"].items() if "TXMSG_STORAGE" in service["environment"]}
    assert with_storage == {"upgrade", "txmsg-broker-1", "txmsg-broker-2", "tailer"}


def test_processes_of_a_machine_have_distinct_ports() -> None:
    text = "".join(path.read_text() for path in (DEPLOY / "systemd").glob("*.toml"))
    ports = re.findall(r'^(?:http_)?listen = "127\.0\.0\.1:(\d+)"', text, re.MULTILINE)
    assert len(ports) == 8
    assert len(set(ports)) == len(ports)


def test_the_page_secures_servers_with_valid_settings(tmp_path: Path) -> None:
    [text] = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    path = tmp_path / "txmsg.toml"
    path.write_text(text)
    for scope in ("broker", "metaq"):
        given = from_file(path, list(settings_of(config_of(scope), scope)))
        assert {"listen", "tls.cert", "tls.key"} < {name.removeprefix(f"{scope}.") for name in given}


def test_probes_use_the_ports_of_the_image() -> None:
    environment = dict(re.findall(r"\b(TXMSG_\w+)=(\S+)", DOCKERFILE))
    [health] = [each for each in main.get_command(click.Context(main), "health").params if each.name == "address"]  # type: ignore[union-attr]
    asked = {environment[f"TXMSG_{scope.upper()}_HTTP_LISTEN"] for scope in SCOPES}
    assert asked == {health.default}
    assert from_docker("CMD")[-1] == HEALTH
    for name, pod in pods().items():
        for container in pod["containers"]:
            assert container["readinessProbe"]["exec"]["command"] == HEALTH, name
            assert container["livenessProbe"]["exec"]["command"] == [*HEALTH, "--alive"], name


def test_every_workload_has_enough_time_for_a_clean_stop() -> None:
    needed_s = stop_s_max(BrokerConfig(storage="postgresql://notify@db/notify"))
    assert 20 < needed_s <= 30
    for unit in UNITS:
        assert [int(value) for value in values_of(unit, "TimeoutStopSec")] == [60], unit.name
    ours = [each for each in COMPOSE["services"].values() if each["image"].startswith("txmsg")]
    assert {each["stop_grace_period"] for each in ours} == {"60s"}
    assert {pod["terminationGracePeriodSeconds"] for pod in pods().values()} == {60}
    assert needed_s < 60


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    verify = shutil.which("systemd-analyze")
    if verify is None:
        pytest.skip("systemd is not installed")
    assert len(UNITS) == 7
    for unit in UNITS:
        text = unit.read_text().replace("/opt/txmsg/bin/", f"{Path(sys.executable).parent}{os.sep}")
        (tmp_path / unit.name).write_text(text)
    done = subprocess.run(
        [verify, "verify", "--man=no", *(str(tmp_path / unit.name) for unit in UNITS)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "found", [pytest.param(each, id=f"{each['kind']}-{each['metadata']['name']}") for each in documents()]
)
def test_manifests_are_valid_for_kubernetes(found: dict[str, Any]) -> None:
    import kubernetes_validate  # here: it is slow, and only this test needs it

    kubernetes_validate.validate(found, "1.36", strict=True)


def test_workloads_are_selected_by_their_own_labels() -> None:
    templates = {
        each["metadata"]["name"]: each["spec"]["template"]["metadata"]["labels"]
        for each in documents()
        if "template" in each["spec"]
    }
    for each in documents():
        if each["kind"] == "Service":
            assert each["spec"]["selector"] == templates[each["metadata"]["name"]]
        elif each["kind"] != "NetworkPolicy":
            assert each["spec"]["selector"]["matchLabels"] == templates[each["metadata"]["name"]]


def test_the_kustomization_names_every_manifest() -> None:
    listed = yaml.safe_load((DEPLOY / "kubernetes" / "kustomization.yaml").read_text())
    assert sorted(listed["resources"]) == [path.name for path in MANIFESTS]
    version = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    assert listed["images"] == [{"name": "txmsg", "newTag": version[1]}]
    ours = {each["image"] for each in COMPOSE["services"].values() if "build" in each}
    assert ours == {f"txmsg:{version[1]}"}


def test_addresses_name_existing_services() -> None:
    services = {each["metadata"]["name"] for each in documents() if each["kind"] == "Service"}
    text = "".join(path.read_text() for path in (DEPLOY / "kubernetes").iterdir())
    assert set(re.findall(r"([a-z-]+):(?:77\d0|8081)", text)) == services
    compose = (DEPLOY / "docker" / "compose.yaml").read_text()
    assert set(re.findall(r"([a-z0-9-]+):(?:77\d0|8081)", compose)) <= COMPOSE["services"].keys()
