"""Files that the system refuses: errors name file, owner and user, never a repair; root leaves no files of its own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

import pytest
from click.testing import CliRunner

from tests import becoming
from tests.becoming import NOBODY, become
from tests.metaq.logs import batch
from txmsg.errors import StorageError
from txmsg.metaq.fsck.check import check
from txmsg.metaq.fsck.repair import repair
from txmsg.metaq.interface import LogQueue
from txmsg.metaq.local import LocalLog
from txmsg.metaq.spool import Spool
from txmsg.ops.cli.main import main

QUEUE = LogQueue("orders", 0)

pytestmark = pytest.mark.skipif(bool(becoming.why_not()), reason=becoming.why_not())


@pytest.fixture
def log_dir() -> Iterator[Path]:
    """A log of user `nobody`, in a directory that every user can reach."""
    above = Path(mkdtemp(prefix="txmsg-owners-", dir="/tmp"))
    with LocalLog(above / "log", append=True) as log:
        log.append([batch("orders", 0, 0, 3)])
    for path in (above, above / "log", *(above / "log").rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    yield above / "log"
    shutil.rmtree(above)


def is_of_root(path: Path) -> bool:
    return any(each.lstat().st_uid == 0 for each in (path, *path.rglob("*")))


def open_and_append(log_dir: Path) -> None:
    with LocalLog(log_dir, append=True) as log:
        log.append([batch("orders", 0, log.ranges([QUEUE])[QUEUE].end, 3)])
        assert log.fetch({QUEUE: 0})


def error_of_opening(log_dir: Path) -> str:
    """Return the error of opening the log as nobody; "" if there is none."""
    try:
        with become():
            open_and_append(log_dir)
    except StorageError as exc:
        return str(exc)
    return ""


def files(log_dir: Path) -> list[Path]:
    return sorted(path for path in log_dir.rglob("*") if path.is_file())


def test_file_owned_by_root_is_named_without_advising_a_repair(log_dir: Path) -> None:
    with become():
        open_and_append(log_dir)
    names = [path.relative_to(log_dir) for path in files(log_dir)]
    assert {"log.json", "checkpoint", "lock"} <= set(map(str, names))
    refused = set()
    for name in names:
        path = log_dir / name
        os.chown(path, 0, 0)
        path.chmod(0o600)
        told = error_of_opening(log_dir)
        os.chown(path, NOBODY, NOBODY)
        if told:
            refused.add(str(name))
            assert f"{path} belongs to user root (id 0) and has mode 0600" in told
            assert "this is user nobody (id 65534)" in told
            assert "chown nobody" in told
            assert "--repair" not in told
    assert {"log.json", "checkpoint", "lock"} <= refused
    with become():
        open_and_append(log_dir)


def test_check_and_repair_of_an_unreadable_log_fail_without_changes(log_dir: Path) -> None:
    path = log_dir / "log.json"
    os.chown(path, 0, 0)
    before = path.read_bytes()
    for act in (check, repair):
        with become(), pytest.raises(StorageError, match=r"log\.json cannot be read: Permission denied: .* root"):
            act(log_dir)
    assert path.read_bytes() == before


@pytest.mark.parametrize("kind", ["append", "repair", "group", "spool"])
def test_root_leaves_no_files_in_a_directory_of_another_user(log_dir: Path, kind: str) -> None:
    def join(log_dir: Path) -> None:
        with LocalLog(log_dir) as log:
            log.join("audit", ["orders"])

    act = {"append": open_and_append, "repair": repair, "group": join, "spool": Spool}[kind]
    with pytest.raises(StorageError, match=r"belongs to user nobody .*and this is root.*sudo -u nobody"):
        act(log_dir)  # type: ignore[operator]
    assert not is_of_root(log_dir)


@pytest.mark.parametrize("name", ["orders.parquet", "made/orders.parquet"])
def test_root_cannot_export_into_a_directory_of_another_user(log_dir: Path, name: str) -> None:
    """Its owner could replace the file being written with a link."""
    to = log_dir.parent / name
    done = CliRunner().invoke(main, ["metaq", "export", "orders", "--log", str(log_dir), "--into", str(to)])
    assert done.exit_code == 1
    assert f"{log_dir.parent}" in done.output
    assert "belongs to user nobody (id 65534), and this is root" in done.output
    assert [path.name for path in log_dir.parent.iterdir()] == ["log"]


def test_root_can_read_a_log_of_another_user(log_dir: Path) -> None:
    with LocalLog(log_dir) as log:
        assert log.topics() == {"orders": [0]}
    assert not is_of_root(log_dir)


def test_refused_command_prints_one_line(log_dir: Path) -> None:
    assert CliRunner().invoke(main, ["metaq", "topics", "--log", str(log_dir)]).exit_code == 0  # imports, as root
    (log_dir / "commitlog").chmod(0)
    with become():
        done = CliRunner().invoke(main, ["metaq", "topics", "--log", str(log_dir)])
    assert done.exit_code == 1
    assert f"{log_dir}/commitlog belongs to user nobody (id 65534) and has mode 0000" in done.output
    assert "chmod u+rwx" in done.output
    assert isinstance(done.exception, SystemExit)
