"""The embedded PostgreSQL of root is not accessible to other users of the machine, including `nobody`."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Final

import psutil
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from txmsg.broker.embedded import EmbeddedPostgres
from txmsg.broker.embedded.cluster import create_cluster
from txmsg.broker.embedded.owner import OtherUser, is_private, new_user
from txmsg.broker.embedded.place import DataDirectory
from txmsg.broker.embedded.programs import programs_for, run
from txmsg.errors import StorageError

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root starts a server as another user")

_AS_USER: Final = """
import json, os, socket, sys
uid, gid, cwd, *args = sys.argv[1:]
os.chdir(cwd)
os.setgroups([])
os.setresgid(int(gid), int(gid), int(gid))
os.setresuid(int(uid), int(uid), int(uid))
"""
_TRIES: Final = """
refused = {}
def tries(name, act):
    try:
        act()
    except OSError as exc:
        refused[name] = type(exc).__name__
    else:
        refused[name] = None
root, socket_dir, pid = args
tries("the data directory", lambda: os.listdir(root))
tries("a file of the cluster", lambda: open(f"{root}/cluster/PG_VERSION").read())
tries("the log", lambda: open(f"{root}/postgres.log").read())
tries("the directory of the socket", lambda: os.listdir(socket_dir))
tries("the socket", lambda: socket.socket(socket.AF_UNIX).connect(f"{socket_dir}/.s.PGSQL.5432"))
tries("a link", lambda: os.symlink("/etc/passwd", f"{root}/cluster/link"))
tries("another directory for the socket", lambda: os.rename(socket_dir, socket_dir + ".away"))
tries("the server's directory", lambda: os.listdir(f"/proc/{pid}/cwd"))
tries("the server's memory", lambda: open(f"/proc/{pid}/mem", "rb"))
tries("a signal", lambda: os.kill(int(pid), 0))
print(json.dumps(refused))
"""
_PLANTED: Final = ("txmsg.conf", "pg_hba.conf", "pg_ident.conf", "postmaster.pid", "pg_hba.conf.before")
"""Files of the cluster that root reads or writes at a start."""


def nobody() -> OtherUser:
    user = pwd.getpwnam("nobody")
    return OtherUser(user.pw_uid, user.pw_gid)


def as_user(user: OtherUser, program: str, *args: object, cwd: Path = Path("/")) -> str:
    """Return the output of a program that runs as this user."""
    words = [sys.executable, "-c", _AS_USER + program, str(user.uid), str(user.gid), str(cwd), *map(str, args)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """A data directory below directories that every user can enter."""
    above = Path(mkdtemp(prefix="txmsg-strangers-", dir="/tmp"))
    above.chmod(0o755)
    yield above / "pg"
    shutil.rmtree(above)


def insert(url: str, n: int) -> list[Any]:
    with psycopg.connect(url, connect_timeout=10) as connection:
        connection.execute("create table if not exists number (n int)")
        connection.execute("insert into number values (%s)", [n])
        return connection.execute("select n from number order by n").fetchall()


def server_of(data_dir: Path) -> psutil.Process:
    process = DataDirectory(data_dir).postmaster()
    assert process is not None
    return process


def test_the_server_and_its_files_belong_to_a_dedicated_user(data_dir: Path) -> None:
    with EmbeddedPostgres(data_dir) as postgres:
        insert(postgres.create_database(), 1)
        [socket_dir] = map(Path, [str(conninfo_to_dict(postgres.url())["host"])])
        server = server_of(data_dir)
        user = server.uids().real
        assert is_private(user)
        assert {each.uids().real for each in server.children(recursive=True)} == {user}
        assert not [each for each in psutil.process_iter(["uids", "cwd"]) if each.info["uids"].real == user
                    and each.info["cwd"] != str(data_dir / "cluster")]  # fmt: skip
        assert {path.lstat().st_uid for path in (data_dir / "cluster").rglob("*")} == {user}
        closed = (data_dir, data_dir / "cluster", socket_dir)
        assert [stat.S_IMODE(path.stat().st_mode) for path in closed] == [0o700] * 3
        assert [path.stat().st_uid for path in closed] == [0, user, user]
        own = {path.name: (path.stat().st_uid, stat.S_IMODE(path.stat().st_mode)) for path in data_dir.iterdir()}
        own.pop("cluster")
        assert own == dict.fromkeys(
            ("keeper.lock", "postgres.log", "socket.path", "start.lock", "users.lock"), (0, 0o600)
        )
    assert not socket_dir.exists()


def test_the_user_nobody_has_no_access(data_dir: Path) -> None:
    with EmbeddedPostgres(data_dir) as postgres:
        insert(postgres.create_database(), 1)
        socket_dir = Path(str(conninfo_to_dict(postgres.url())["host"]))
        told = json.loads(as_user(nobody(), _TRIES, data_dir, socket_dir, server_of(data_dir).pid))
        assert len(told) == 10
        assert set(told.values()) == {"PermissionError"}, told
        # If the directory were open, the server itself would refuse.
        socket_dir.chmod(0o777)
        command = ("-h", socket_dir, "-U", "postgres", "-c", "select 1", "postgres")
        done = run(programs_for(nobody()) / "psql", *command, user=nobody())
        assert done.returncode != 0
        assert 'Peer authentication failed for user "postgres"' in done.stdout
        assert insert(postgres.url(), 2) == [(1,), (2,)], "root is let in, as the user in the URL"


@pytest.mark.parametrize("link", ["symbolic", "hard"])
def test_root_does_not_follow_links_of_the_server_user(data_dir: Path, link: str) -> None:
    target = data_dir.parent / "target"
    target.write_text("precious\n")
    with EmbeddedPostgres(data_dir) as postgres:
        insert(postgres.create_database(), 1)
    for name in _PLANTED:
        (data_dir / "cluster" / name).unlink(missing_ok=True)
        if link == "symbolic":
            (data_dir / "cluster" / name).symlink_to(target)
        else:
            os.link(target, data_dir / "cluster" / name)
    before = target.stat()
    with EmbeddedPostgres(data_dir) as postgres:
        assert insert(postgres.url(), 2) == [(1,), (2,)]
        assert target.read_text() == "precious\n"
        inside = [path for path in (data_dir / "cluster").iterdir() if path.is_file() and not path.is_symlink()]
        copies = [path for path in inside if path.read_bytes() == b"precious\n" and not path.samefile(target)]
        assert copies == [], "what only root may read is not copied, either"
        assert (target.stat().st_uid, target.stat().st_mode) == (before.st_uid, before.st_mode)


def test_a_pipe_in_place_of_the_pid_file_does_not_block(data_dir: Path) -> None:
    with EmbeddedPostgres(data_dir):
        pass
    os.mkfifo(data_dir / "cluster" / "postmaster.pid")
    assert not EmbeddedPostgres(data_dir).running
    with EmbeddedPostgres(data_dir) as postgres:
        assert postgres.running


def test_a_process_of_another_user_is_not_mistaken_for_the_server(data_dir: Path) -> None:
    with EmbeddedPostgres(data_dir):
        pass
    place = DataDirectory(data_dir)
    command = [sys.executable, "-c", "import sys; sys.stdin.read()", place.server_setting]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as named:
        (place.cluster / "postmaster.pid").write_text(f"{named.pid}\n")
        assert place.postmaster() is None, "root's own process would get a signal"
        assert named.stdin is not None
        named.stdin.close()


def test_the_initdb_process_is_not_accessible_to_the_user_nobody(data_dir: Path) -> None:
    data_dir.mkdir(mode=0o700)
    inside = data_dir / "new"
    inside.mkdir(mode=0o700)
    author = OtherUser(nobody().uid, new_user().gid)
    os.chown(inside, author.uid, author.gid)
    words = [sys.executable, "-c", _AS_USER + "print('ready', flush=True); sys.stdin.read()"]
    words += [str(author.uid), str(author.gid), str(inside)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        told = as_user(
            nobody(),
            """
for path in ("cwd", "root", "fd", "mem", "environ"):
    try:
        os.listdir(f"/proc/{args[0]}/{path}") if path in ("cwd", "root", "fd") else open(f"/proc/{args[0]}/{path}")
    except PermissionError:
        print(path)
""",
            process.pid,
        )
        assert told.split() == ["cwd", "root", "fd", "mem", "environ"]
        process.communicate("")


@pytest.fixture
def of_nobody(data_dir: Path) -> Path:
    """A data directory of the former version: `nobody` owns the cluster, whose server trusts everybody."""
    with EmbeddedPostgres(data_dir) as postgres:
        insert(postgres.create_database(), 1)
    for path in (data_dir / "cluster", *(data_dir / "cluster").rglob("*"), data_dir / "postgres.log"):
        os.chown(path, nobody().uid, nobody().gid)
    (data_dir / "cluster" / "pg_hba.conf").write_text("local all all trust\nhost all all 127.0.0.1/32 trust\n")
    os.chown(data_dir / "cluster" / "txmsg.conf", 0, 0)  # root wrote it
    return data_dir


def test_a_cluster_of_the_user_nobody_is_transferred_to_a_dedicated_user(of_nobody: Path) -> None:
    with EmbeddedPostgres(of_nobody) as postgres:
        assert insert(postgres.url(), 2) == [(1,), (2,)]
        owners = {path.lstat().st_uid for path in (of_nobody / "cluster").rglob("*")}
        assert owners == {server_of(of_nobody).uids().real}
        assert is_private(*owners)
        assert "trust" not in (of_nobody / "cluster" / "pg_hba.conf").read_text()
        assert (of_nobody / "postgres.log").stat().st_uid == 0
    with EmbeddedPostgres(of_nobody) as postgres:
        assert {server_of(of_nobody).uids().real} == owners, "it keeps its user"
        assert insert(postgres.url(), 3) == [(1,), (2,), (3,)]


@pytest.mark.parametrize("kind", ["symbolic link", "hard link", "file of another user"])
def test_files_planted_by_the_user_nobody_are_not_transferred(of_nobody: Path, kind: str) -> None:
    target = of_nobody.parent / "target"
    target.write_text("precious\n")
    os.chown(target, 12345, 12345)
    planted = of_nobody / "cluster" / "base" / "planted"
    if kind == "symbolic link":
        planted.symlink_to(target)
    elif kind == "hard link":
        os.link(target, planted)
    else:
        planted.write_text("x")
        os.chown(planted, 12345, 12345)
    with pytest.raises(StorageError, match=r"cluster/base/planted is not as PostgreSQL makes it .*remove it if"):
        EmbeddedPostgres(of_nobody).start()
    assert target.stat().st_uid == 12345
    planted.unlink()
    with EmbeddedPostgres(of_nobody) as postgres:  # also after the interruption
        assert insert(postgres.url(), 2) == [(1,), (2,)]


@pytest.mark.parametrize(
    ("name", "way_out"),
    [
        ("pg_wal", r"`rm \S*/cluster/pg_wal && mv \S*/disk \S*/cluster/pg_wal`"),
        ("pg_tblspc/16400", r"start the version of txmsg before.*`drop tablespace NAME`"),
    ],
)
def test_data_on_another_disk_is_not_removed(data_dir: Path, name: str, way_out: str) -> None:
    place = DataDirectory(data_dir)
    for part in ("pg_tblspc", "pg_wal") if name != "pg_wal" else ("pg_tblspc",):
        (place.cluster / part).mkdir(parents=True)
    (place.cluster / "PG_VERSION").touch()
    (data_dir / "disk").mkdir()
    (place.cluster / name).symlink_to(data_dir / "disk")
    paths = (place.cluster, *place.cluster.rglob("*"))
    for path in paths:
        os.chown(path, nobody().uid, nobody().gid, follow_symlinks=False)
    with pytest.raises(StorageError, match=way_out) as told:
        create_cluster(place)
    assert "Do not remove it" in str(told.value)
    assert "remove it if" not in str(told.value)
    assert {path.lstat().st_uid for path in paths} == {nobody().uid}, "the version before still starts"


def test_root_does_not_use_a_data_directory_of_another_user(data_dir: Path) -> None:
    data_dir.mkdir()
    os.chown(data_dir, nobody().uid, nobody().gid)
    with pytest.raises(StorageError, match=r"data directory .* belongs to user nobody .*`sudo -u nobody \.\.\.`"):
        EmbeddedPostgres(data_dir).start()
    assert list(data_dir.iterdir()) == []


def test_root_does_not_reach_its_data_directory_through_that_of_another_user(data_dir: Path) -> None:
    home = data_dir.parent / "home"
    home.mkdir()
    elsewhere = data_dir.parent / "elsewhere"
    elsewhere.mkdir(mode=0o755)
    (home / "link").symlink_to(elsewhere)
    os.chown(home, nobody().uid, nobody().gid)
    for name in ("link", "link/pg", "new", "new/pg"):
        with pytest.raises(StorageError, match=r"data directory .* through the directory .*/home, which belongs to"):
            EmbeddedPostgres(home / name).start()
    assert [path.name for path in home.iterdir()] == ["link"]
    assert list(elsewhere.iterdir()) == []
    assert stat.S_IMODE(elsewhere.stat().st_mode) == 0o755


def test_root_does_not_use_an_arbitrary_directory_as_data_directory(data_dir: Path) -> None:
    elsewhere = data_dir.parent / "elsewhere"
    elsewhere.mkdir(mode=0o755)
    (elsewhere / "passwd").touch()
    data_dir.symlink_to(elsewhere)
    with pytest.raises(StorageError, match=r"elsewhere has contents, and not those of a database"):
        EmbeddedPostgres(data_dir).start()
    assert [path.name for path in elsewhere.iterdir()] == ["passwd"]
    assert stat.S_IMODE(elsewhere.stat().st_mode) == 0o755


def test_a_dedicated_user_is_chosen_among_mapped_user_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txmsg.broker.embedded.owner._is_mapped", lambda number: number < 65_536)
    assert 61_184 <= new_user().uid < 65_520, "as in most containers of a user without root's rights"
    monkeypatch.setattr("txmsg.broker.embedded.owner._is_mapped", lambda number: number == 0)
    with pytest.raises(StorageError, match=r"maps no user id that nothing uses .*run txmsg as a user other than root"):
        new_user()


def test_programs_in_a_cache_of_another_user_are_not_run(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = data_dir.parent / "cache"
    cache.mkdir()
    os.chown(cache, nobody().uid, nobody().gid)
    monkeypatch.setattr("txmsg.broker.embedded.programs._can_run", lambda *_: False)
    with pytest.raises(StorageError, match=r"cache hold a copy of them .*not a directory of user 0"):
        programs_for(nobody(), cache=cache)
