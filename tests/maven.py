"""Jars that tests run, as Maven brings them once into the user's cache."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

_BRING_S_MAX = 900
_POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion><groupId>txmsg</groupId><artifactId>tests</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>
  </dependency></dependencies>
</project>
"""


def jars_dir(name: str) -> Path:
    """Where the jars of this name are kept."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache, "txmsg-tests", name)


def are_at_hand(name: str) -> bool:
    """Whether there is a Java, and the jars or a Maven to bring them."""
    return shutil.which("java") is not None and (jars_dir(name).exists() or shutil.which("mvn") is not None)


def jars(name: str, coordinates: str, *, only: str = "") -> Path:
    """The directory of these jars, filled by Maven when it is not there yet. Processes may call it at once.

    coordinates: GROUP:ARTIFACT:VERSION, which comes with all that it needs. only: artifacts with commas between them;
    the others are left out. Raises CalledProcessError when Maven does not find it.
    """
    directory = jars_dir(name)
    directory.parent.mkdir(parents=True, exist_ok=True)
    with (directory.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not directory.exists():
            with tempfile.TemporaryDirectory(dir=directory.parent) as made:
                Path(made, "pom.xml").write_text(_POM.format(*coordinates.split(":")))
                command = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=jars"]
                command += [f"-DincludeArtifactIds={only}"] if only else []
                subprocess.run(command, cwd=made, check=True, timeout=_BRING_S_MAX, stdin=subprocess.DEVNULL)
                Path(made, "jars").rename(directory)
    return directory
