"""A real gateway process for tests, and RocketMQ's own clients for Python, Java and Go in processes of their own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.maven import are_at_hand, jars
from tests.ports import own_port
from tests.restartable import Restartable

HOW_TO_INSTALL_JDK = "no JDK with Maven is installed: `apt-get install maven default-jdk-headless` (Debian)"
HOW_TO_INSTALL_GO = "Go is not installed: `apt-get install golang-go` (Debian)"

_HERE = Path(__file__).parent
_SCENARIO_S_MAX = 120.0
_BUILD_S_MAX = 600.0


class GatewayProcess(Restartable):
    """`txmsg rocketmq` as a child process, on the same port after a restart."""

    def __init__(self, brokers: str, *, log: Path) -> None:
        super().__init__("the gateway", log)
        self._brokers = brokers
        self.address = f"127.0.0.1:{own_port()}"

    def arguments(self) -> Sequence[str]:
        return ["rocketmq", "--broker", self._brokers, "--listen", self.address]


@contextmanager
def running_gateway(brokers: str, *, log: Path) -> Iterator[GatewayProcess]:
    """A gateway that must end in order."""
    gateway = GatewayProcess(brokers, log=log)
    gateway.start()
    try:
        yield gateway
        assert gateway.stop() == 0, log.read_text()
    finally:
        gateway.kill()


def play(scenario: str, gateway: str, *words: str, home: Path) -> list[dict[str, Any]]:
    """What a scenario of `client.py` prints. It logs below `home`."""
    return _lines([sys.executable, "-m", "tests.rocketmq.client", scenario, gateway, *words], home)


def play_java(gateway: str, topic: str, *, home: Path) -> list[dict[str, Any]]:
    """What java/Push.java prints."""
    path = jars("rocketmq-client-java-5.2.0", "org.apache.rocketmq:rocketmq-client-java:5.2.0")
    java = ["java", "-Xmx256m", f"-Duser.home={home}", "-cp", f"{path}/*", str(_HERE / "java" / "Push.java")]
    return _lines([*java, gateway, topic], home)


def play_go(gateway: str, topic: str, *, home: Path) -> list[dict[str, Any]]:
    """What go/push.go prints."""
    program = home / "push"
    build = ["go", "build", "-buildvcs=false", "-o", str(program), "."]
    built = subprocess.run(build, cwd=_HERE / "go", capture_output=True, text=True, timeout=_BUILD_S_MAX, check=False)
    assert built.returncode == 0, built.stderr
    return _lines([str(program), gateway, topic], home)


def has_jdk() -> bool:
    """Whether Java can be compiled, and the jars be brought."""
    return shutil.which("javac") is not None and are_at_hand("rocketmq-client-java-5.2.0")


def has_go() -> bool:
    """Whether Go can be compiled."""
    return shutil.which("go") is not None


def _lines(command: Sequence[str], home: Path) -> list[dict[str, Any]]:
    done = subprocess.run(
        command,
        env={**os.environ, "HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=_SCENARIO_S_MAX,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
