"""A run-book: a page whose commands a shell runs as printed, except for its settings, set by the test."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

from txmsg.broker.embedded.programs import binaries_dir

_PAGES = Path(__file__).resolve().parents[2] / "docs" / "runbooks"
_SETTINGS = "Settings"
_SECTION = re.compile(r"^## (.*)$", re.MULTILINE)
_BLOCK = re.compile(r"^ *```sh\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_NAME = re.compile(r"^(\w+)(?:=|\(\) \{)", re.MULTILINE)
_SECTION_S_MAX = 200.0


class Page:
    """One run-book, with a test's settings: a variable or the body of a function by name."""

    def __init__(self, name: str, variables: Mapping[str, object], functions: Mapping[str, str]) -> None:
        title_and_text = _SECTION.split((_PAGES / f"{name}.md").read_text(encoding="utf-8"))[1:]
        self._commands = {
            title: "\n".join(map(textwrap.dedent, _BLOCK.findall(text)))
            for title, text in zip(title_and_text[::2], title_and_text[1::2], strict=True)
        }
        wanted = set(_NAME.findall(self._commands.pop(_SETTINGS)))
        assert wanted == variables.keys() | functions.keys(), "the page has other settings than the test"
        self._functions = "\n".join(f"{name}() {{ {body}; }}" for name, body in functions.items())
        self._environment = {**os.environ, **{name: str(value) for name, value in variables.items()}}
        programs = [str(Path(sys.executable).parent), str(binaries_dir()), self._environment["PATH"]]
        self._environment["PATH"] = os.pathsep.join(programs)
        self.left = [title for title, commands in self._commands.items() if commands]
        """The sections whose commands have not run yet."""

    def set(self, variable: str, value: str) -> None:
        """Change a setting from now on."""
        self._environment[variable] = value

    def run(self, section: str) -> str:
        """Run the commands of a section, which must all succeed; return their output."""
        self.left.remove(section)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", f"{self._functions}\n{self._commands[section]}"],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=_SECTION_S_MAX,
        )
        assert done.returncode == 0, f"{section}: exit status {done.returncode}\n{done.stdout}"
        return done.stdout
