"""The slow, forgetful disk of chaos: kept writes, and the duration of syncs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.disk import Disk
from tests.preloaded import HOW_TO_INSTALL_CC, compiler
from tests.waiting import until

FORGETS = "/forgotten/"


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    if compiler() is None:
        pytest.skip(HOW_TO_INSTALL_CC)
    disk = Disk(tmp_path)
    disk.prepare()
    return disk


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The directory whose unsynced writes can be lost."""
    data = tmp_path / "forgotten"
    data.mkdir()
    return data


@pytest.fixture
def programs(disk: Disk, data: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Programs that are killed at the end."""
    programs: list[subprocess.Popen[bytes]] = []
    yield programs
    for program in programs:
        program.kill()
        program.communicate()


def start(disk: Disk, data: Path, code: str) -> subprocess.Popen[bytes]:
    environment = os.environ | disk.environment(forgets=FORGETS)
    command = [sys.executable, "-c", f"import os\n{code}"]
    return subprocess.Popen(command, cwd=data, env=environment, stdout=subprocess.PIPE)


def run(disk: Disk, data: Path, code: str) -> str:
    """Return the output of the program."""
    told, _ = (program := start(disk, data, code)).communicate(timeout=60)
    assert program.returncode == 0
    return told.decode()


def test_synced_writes_are_kept_and_others_lost(disk: Disk, data: Path) -> None:
    run(
        disk,
        data,
        "log = os.open('log', os.O_RDWR | os.O_CREAT)\n"
        "other = os.open('other', os.O_WRONLY | os.O_CREAT | os.O_APPEND)\n"
        "os.write(log, b'synced, '); os.pwrite(log, b'S', 0); os.writev(log, [b'tw', b'ice']); os.fdatasync(log)\n"
        "os.write(other, b'never synced'); os.write(other, b' at all')\n"
        "os.pwrite(log, b'12345', 3); os.pwrite(log, b'678', 4); os.pwritev(log, [b'far ', b'away'], 100)\n",
    )
    assert (data / "log").read_bytes() == b"Syn16785twice" + bytes(87) + b"far away"
    assert (data / "other").read_bytes() == b"never synced at all"
    assert disk.unsynced_bytes() > 0

    assert disk.forget(data) == 5

    assert (data / "log").read_bytes() == b"Synced, twice"
    assert (data / "other").read_bytes() == b""
    assert disk.unsynced_bytes() == 0


def test_renamed_removed_and_foreign_files_are_not_confused(disk: Disk, data: Path, tmp_path: Path) -> None:
    run(
        disk,
        data,
        "def put(path, text, sync=False):\n"
        "    with open(path, 'wb') as file:\n"
        "        file.write(text); file.flush()\n"
        "        if sync: os.fsync(file.fileno())\n"
        "put('old', b'kept', sync=True); os.rename('old', 'new')\n"
        "with open('new', 'r+b') as file: file.write(b'lost')\n"
        "put('removed', b'x'); os.unlink('removed'); put('next', b'its inode', sync=True)\n"
        "put('../beside', b'of another directory')\n",
    )
    assert disk.forget(data) == 1
    assert (data / "new").read_bytes() == b"kept"
    assert (data / "next").read_bytes() == b"its inode"
    assert (tmp_path / "beside").read_bytes() == b"of another directory"


def test_sync_makes_earlier_writes_of_every_process_durable(
    disk: Disk, data: Path, programs: list[subprocess.Popen[bytes]]
) -> None:
    (data / "log").write_bytes(bytes(6))
    run(disk, data, "os.pwrite(os.open('log', os.O_WRONLY), b'a', 0)")
    disk.set_delay(float("inf"))
    code = "log = os.open('log', os.O_WRONLY); os.pwrite(log, b'b', 1); os.fsync(log); print('synced')"
    syncing = start(disk, data, code)
    programs.append(syncing)
    until(lambda: disk.syncs() == 1)
    run(disk, data, "os.pwrite(os.open('log', os.O_WRONLY), b'c', 2)")
    assert syncing.poll() is None, "a sync that takes for ever has ended"
    disk.set_delay(0)
    assert syncing.communicate(timeout=60)[0] == b"synced\n"
    assert (data / "log").read_bytes() == b"abc" + bytes(3)

    assert disk.forget(data) == 1

    assert (data / "log").read_bytes() == b"ab" + bytes(4)


def test_process_killed_during_a_sync_has_synced_nothing(
    disk: Disk, data: Path, programs: list[subprocess.Popen[bytes]]
) -> None:
    disk.set_delay(float("inf"))
    syncing = start(disk, data, "log = os.open('log', os.O_WRONLY | os.O_CREAT); os.write(log, b'x'); os.fsync(log)")
    programs.append(syncing)
    until(lambda: disk.syncs() == 1)
    syncing.kill()
    syncing.wait()
    assert disk.forget(data) == 1
    assert (data / "log").read_bytes() == b""


def test_syncs_take_the_configured_time(disk: Disk, data: Path) -> None:
    disk.set_delay(0.05)
    took = run(
        disk,
        data,
        "import mmap, time\n"
        "log = os.open('log', os.O_RDWR | os.O_CREAT); os.write(log, b'x')\n"
        "for sync in (os.fsync, os.fdatasync, lambda _: os.sync(), lambda fd: mmap.mmap(fd, 1).flush()):\n"
        "    began = time.monotonic(); sync(log); print(time.monotonic() - began)\n",
    )
    assert [float(each) >= 0.05 for each in took.split()] == [True] * 4
    assert disk.syncs() == 4


def test_a_program_without_its_control_file_does_not_start(disk: Disk, data: Path) -> None:
    environment = os.environ | disk.environment() | {"DISK_CONTROL": "/nowhere"}
    done = subprocess.run([sys.executable, "-c", ""], env=environment, capture_output=True, check=False)
    assert done.returncode == 127
    assert done.stderr == b"disk.c: cannot map DISK_CONTROL (/nowhere): No such file or directory\n"
