"""Missing tools are found before programs of RocketMQ clients run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rocketmq import programs
from tests.rocketmq.programs import has_go
from tests.tools import missing


@pytest.mark.parametrize(
    ("version", "is_enough"),
    [("go1.19.8", False), ("go1.23.12", False), ("go1.24", True), ("go1.26.8", True), ("go2.0", True), ("", False)],
)
def test_too_old_go_counts_as_missing_without_stopping_other_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, is_enough: bool
) -> None:
    go = tmp_path / "go"
    go.write_text(f"#!/bin/sh\necho go version {version} linux/amd64\n")
    go.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert has_go.__wrapped__() is is_enough  # it is asked once per process otherwise
    assert programs.GO.how_to_install not in missing(mariadb="none", kafka="none")
