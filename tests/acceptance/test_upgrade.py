"""The wheel of an earlier commit writes data of each kind and is stopped; the current wheel continues with it.

The earlier commit is the one that changed the schema of the Notify database last: it is changed in place until the
first release, so databases of commits before that one are not upgraded. Once there are releases: the newest tag.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
from collections import Counter
from io import BytesIO
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.acceptance import upgrade_client
from tests.acceptance.releases import Release
from tests.acceptance.running_up import running_up
from tests.acceptance.test_wheel import build
from txmsg.binlog.verifier.compare import verify

ROOT = Path(__file__).parents[2]
SCHEMA = "txmsg/broker/migrations"
SETTINGS = """
[broker]
retention_s = "14d"

[metaq]
log.file_size_bytes_max = "64KiB"
"""
_RUN_S_MAX = 300.0


def git(*args: str) -> bytes:
    return subprocess.run(["git", *args], cwd=ROOT, check=True, capture_output=True, timeout=60).stdout


def earlier_commit() -> str:
    """The earlier commit; skips the test if git does not have it."""
    try:
        if git("rev-parse", "--is-shallow-repository").strip() != b"false":
            pytest.skip("the clone is shallow: run `git fetch --unshallow --tags`")
        tags = git("tag", "--list", "v*", "--sort=-creatordate").decode().split()
        return tags[0] if tags else git("log", "-1", "--format=%H", "--", SCHEMA).decode().strip()
    except (OSError, subprocess.CalledProcessError) as exc:
        pytest.skip(f"this is no clone of the repository: {exc}")


def installed(source: Path, directory: Path) -> Release:
    """Install the wheel of `source`."""
    directory.mkdir()
    with ZipFile(build("wheel", directory / "dist", source=source)) as wheel:
        wheel.extractall(directory / "installed")
    return Release(directory / "installed")


def earlier_release(directory: Path) -> Release:
    commit = earlier_commit()
    with tarfile.open(fileobj=BytesIO(git("archive", commit))) as archive:
        archive.extractall(directory / "source", filter="data")
    return installed(directory / "source", directory / "earlier")


def run_client(release: Release, when: str, directory: Path, ready: dict[str, str]) -> dict[str, list[str]]:
    done = subprocess.run(
        [sys.executable, upgrade_client.__file__, when, str(directory), ready["broker"], ready["metaq"]],
        env=release.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=_RUN_S_MAX,
    )
    assert done.returncode == 0, done.stderr
    (directory / f"{when}.json").write_text(done.stdout)
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


@pytest.mark.long
@pytest.mark.takes_long
@pytest.mark.timeout(900)
def test_the_next_wheel_continues_with_the_data_of_an_earlier_one(tmp_path: Path) -> None:
    earlier = earlier_release(tmp_path)
    now = installed(ROOT, tmp_path / "now")
    data, settings = tmp_path / "data", tmp_path / "settings.toml"
    settings.write_text(SETTINGS)

    with running_up(data, "--config", str(settings), environment=earlier.environment) as ready:
        before = run_client(earlier, "before", tmp_path, ready)
    assert len(list((data / "metaq" / "commitlog").iterdir())) > 1
    assert before["rejected"]

    with running_up(data, "--config", str(settings), environment=now.environment) as ready:
        redriven = now.run("dead-letter", "redrive", "--group", "mailer", "--broker", ready["broker"])
        assert re.search(rf"\b{len(before['rejected'])}\b", redriven)
        after = run_client(now, "after", tmp_path, ready)
        assert verify(ready["storage"], data / "metaq", topics=["orders", "charges", "placed"], wait_s=60).is_equal
        halves = json.loads(now.run("half", "list", "--broker", ready["broker"], "--json"))
        assert halves["halves"] == []

    orders = [f"order-{n}" for n in range(upgrade_client.ORDERS)] + ["order-new"]
    once = Counter(orders)
    assert Counter(before["mailed"] + after["orders"]) == once
    assert Counter(before["read"] + after["read"]) == once, "offsets of the group of a log"
    assert sorted(after["reminders"]) == sorted(f"reminder-{n}" for n in range(upgrade_client.REMINDERS))
    assert sorted(after["charges"]) == [f"commit-{n}" for n in range(0, upgrade_client.CHARGES, 2)]
    assert len(after["placed"]) == upgrade_client.AWAY
    assert set(after["lines"]) == {*(f"line-{n}" for n in range(upgrade_client.LINES)), "line-new"}
    now.run("metaq", "check", str(data / "metaq"))
