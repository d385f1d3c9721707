"""RocketMQ's official clients for Python, Java, Go and Node, run by these tests as separate processes.

A program prints lines of JSON. It is called with the gateway's HOST:PORT, a topic, and what else it says.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark import ParameterSet

from tests.brought import brought, cached
from tests.maven import are_at_hand, jars
from txmsg.runtime.child import Child, spawn_program

_HERE = Path(__file__).parent
_LOCKED = _HERE.parents[1] / "examples" / "rocketmq"
"""Lock files of package versions."""
_JAVA = "rocketmq-client-java-5.2.0"
_NODE = "rocketmq-client-nodejs-1.0.8"
_GO_LEAST = (1, 24)
"""Minimum Go version of RocketMQ's client."""
JAVA_OPTIONS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""A Java program or compiler then takes half of the CPU time: it ends before a better compiler would pay off."""
_VERSION_S_MAX = 60.0
_SCENARIO_S_MAX = 600.0
_BUILD_S_MAX = 600.0
_NPM_S_MAX = 800.0
_END_S_MAX = 60.0


@dataclass(frozen=True, slots=True)
class Language:
    """A language with an official client."""

    name: str
    how_to_install: str
    is_installed: Callable[[], bool]
    command: Callable[[str, Path], list[str]]
    """Command that runs a program by name in the directory of the language; built below the path if needed."""
    environment: Mapping[str, str] = field(default_factory=dict)

    def play(self, program: str, *words: str, home: Path) -> list[dict[str, Any]]:
        """Return the output of a program that exits by itself. Its client logs below `home`."""
        done = subprocess.run(
            [*self.command(program, home), *words],
            env={**os.environ, **self.environment, "HOME": str(home)},
            capture_output=True,
            text=True,
            timeout=_SCENARIO_S_MAX,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return _facts(done.stdout.splitlines())


class Running:
    """A program that runs until it is stopped. A context manager: killed when it is left."""

    def __init__(self, language: Language, program: str, *words: str, home: Path) -> None:
        self._lines: list[str] = []
        self._child = Child(
            f"{program} in {language.name}",
            [*language.command(program, home), *words],
            log=home / f"{language.name}-{program}.log",
            env={**language.environment, "HOME": str(home)},
            on_line=self._lines.append,
            start=spawn_program,
        )

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def said(self) -> list[dict[str, Any]]:
        """Return its output so far."""
        self._child.require_running()
        return _facts(list(self._lines))

    def tell(self, line: str) -> None:
        """Write a line to its stdin."""
        self._child.write_line(line)

    def kill(self) -> None:
        """Send SIGKILL. Killing an ended process is fine."""
        self._child.kill()
        self._child.stop(_END_S_MAX)


def _facts(lines: Sequence[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines if line.startswith("{")]


def _python(program: str, _: Path) -> list[str]:
    return [sys.executable, "-m", "tests.rocketmq.client", program]


def _java(program: str, home: Path) -> list[str]:
    libraries = f"{java_jars()}/*"
    classes = compiled_java(libraries, *(_HERE / "java").glob("*.java"))
    path = f"{classes}{os.pathsep}{libraries}"
    return ["java", "-Xmx256m", *JAVA_OPTIONS, f"-Duser.home={home}", "-cp", path, program.title()]


@cache
def compiled_java(libraries: str, *sources: Path) -> Path:
    """Return the directory of the classes of these sources, kept for later runs. libraries: their class path."""

    def compile_into(empty: Path) -> Path:
        command = ["javac", *(f"-J{option}" for option in JAVA_OPTIONS), "-cp", libraries, "-d", str(empty / "classes")]
        _build([*command, *map(str, sources)], empty)
        return empty / "classes"

    return brought(f"java-classes-{_digest('javac', sources, libraries)}", compile_into, by="javac")


def java_jars() -> Path:
    """Return the directory of RocketMQ's client for Java, with all its dependencies."""
    return jars(_JAVA, "org.apache.rocketmq:rocketmq-client-java:5.2.0")


def _go(program: str, _: Path) -> list[str]:
    return [str(built_go(*(_HERE / "go").glob("*.go"))), program]


@cache
def built_go(*sources: Path) -> Path:
    """Return the program built from these sources, kept for later runs."""
    files = (*sources, _LOCKED / "go.mod", _LOCKED / "go.sum")

    def build_into(empty: Path) -> Path:
        for file in files:
            shutil.copy(file, empty)
        _build(["go", "build", "-buildvcs=false", "-o", "built/rocketmq-go", "."], empty)
        return empty / "built"

    return brought(f"go-program-{_digest('go', files)}", build_into, by="go") / "rocketmq-go"


def _digest(compiler: str, files: Sequence[Path], libraries: str = "") -> str:
    """Return a digest of the compiler, the files' contents, and the class path."""
    found = shutil.which(compiler)
    assert found is not None, f"{compiler} is not installed"
    digest = sha256(f"{os.path.realpath(found)}\0{libraries}".encode())
    for file in sorted(files):
        digest.update(b"\0" + file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


def _build(command: Sequence[str], directory: Path) -> None:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=_BUILD_S_MAX, check=False)
    assert done.returncode == 0, done.stderr


def _node(program: str, _: Path) -> list[str]:
    node_packages()
    return ["node", str(_HERE / "node" / f"{program}.js")]


def node_packages() -> Path:
    """Return the directory in which RocketMQ's client for Node is installed."""
    return brought(_NODE, _install, by="npm")


def _install(empty: Path) -> Path:
    """Install the packages of the lock file, verified by their digests. Does not run their scripts."""
    for name in ("package.json", "package-lock.json"):
        shutil.copy(_LOCKED / name, empty)
    command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=5"]
    done = subprocess.run(command, cwd=empty, capture_output=True, text=True, timeout=_NPM_S_MAX, check=False)
    assert done.returncode == 0, done.stderr
    return empty


def _has_jdk() -> bool:
    return shutil.which("javac") is not None and are_at_hand(_JAVA)


@cache
def has_go() -> bool:
    """Return True if there is a Go that can read our go.mod."""
    if shutil.which("go") is None:
        return False
    said = subprocess.run(["go", "version"], capture_output=True, text=True, timeout=_VERSION_S_MAX, check=False).stdout
    found = re.search(r"go(\d+)\.(\d+)", said)
    return found is not None and (int(found[1]), int(found[2])) >= _GO_LEAST


def _has_node() -> bool:
    return shutil.which("node") is not None and (cached(_NODE).exists() or shutil.which("npm") is not None)


PYTHON = Language("python", "", lambda: True, _python)
JAVA = Language(
    "java",
    "no JDK with Maven is installed: `apt-get install maven default-jdk-headless` (Debian)",
    _has_jdk,
    _java,
)
GO = Language("go", "Go 1.24 or newer is not installed: `apt-get install golang-go` (Debian 13)", has_go, _go)
NODE = Language(
    "node",
    "Node 18 with npm is not installed: `apt-get install --no-install-recommends nodejs npm` (Debian)",
    _has_node,
    _node,
    {"NODE_PATH": str(cached(_NODE) / "node_modules")},
)


def each(*languages: Language) -> list[ParameterSet]:
    """Return parameters of all languages: missing ones are skipped with their install command."""
    return [
        pytest.param(
            language,
            id=language.name,
            marks=pytest.mark.skipif(not language.is_installed(), reason=language.how_to_install),
        )
        for language in languages
    ]
