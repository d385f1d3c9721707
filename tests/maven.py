"""Jars for tests, downloaded once by Maven into the user's cache."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.brought import brought, cached

_BRING_S_MAX = 900
_POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion><groupId>txmsg</groupId><artifactId>tests</artifactId><version>1</version>
  <dependencies>{}</dependencies>
</project>
"""
_DEPENDENCY = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"


def are_at_hand(name: str) -> bool:
    """Return True if there is a Java, and the jars or a Maven to download them."""
    return shutil.which("java") is not None and (cached(name).exists() or shutil.which("mvn") is not None)


def jars(name: str, *coordinates: str, only: str = "") -> Path:
    """Return the directory of these jars, filled by Maven if it is missing. Safe to call from several processes.

    coordinates: GROUP:ARTIFACT:VERSION of each, which comes with all that it needs. only: artifacts with commas between
    them; the others are left out. Raises CalledProcessError when Maven does not find one.
    """

    def bring(empty: Path) -> Path:
        wanted = (_DEPENDENCY.format(*each.split(":")) for each in coordinates)
        (empty / "pom.xml").write_text(_POM.format("".join(wanted)))
        command = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=jars"]
        command += [f"-DincludeArtifactIds={only}"] if only else []
        subprocess.run(command, cwd=empty, check=True, timeout=_BRING_S_MAX, stdin=subprocess.DEVNULL)
        return empty / "jars"

    return brought(name, bring, by="maven")
