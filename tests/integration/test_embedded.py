"""The embedded PostgreSQL: shared, stopped with its last user, recovered after crashes."""

from __future__ import annotations

import fcntl
import os
import pwd
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import psutil
import psycopg
import pytest

from tests import namespaces
from tests.waiting import until
from txmsg.broker.embedded import EmbeddedPostgres, cluster, keeper, place
from txmsg.broker.embedded.contents import Contents, contents_of
from txmsg.broker.embedded.place import DataDirectory, default_data_dir, is_locked
from txmsg.broker.embedded.watch import ServerWatch
from txmsg.errors import MisuseError, StorageError

USER = """
import sys
from pathlib import Path
from txmsg.broker.embedded import EmbeddedPostgres
with EmbeddedPostgres(Path(sys.argv[1])) as postgres:
    print(postgres.create_database(), flush=True)
    sys.stdin.read()
"""


class User:
    """A process that uses the server until its stdin ends."""

    def __init__(self, data_dir: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", USER, str(data_dir)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def await_ready(self) -> str:
        assert self.process.stdout is not None
        url = self.process.stdout.readline().strip()
        assert url, "the user did not start"
        return url

    def leave(self) -> None:
        self.end(None)
        assert self.process.returncode == 0

    def end(self, how: signal.Signals | None) -> None:
        if how is not None:
            self.process.send_signal(how)
        self.process.communicate(timeout=60)


class StartUser(Protocol):
    def __call__(self) -> User: ...


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "pg"


@pytest.fixture
def start_user(data_dir: Path) -> Iterator[Callable[[], User]]:
    users: list[User] = []

    def start() -> User:
        users.append(User(data_dir))
        return users[-1]

    yield start
    for user in users:
        if user.process.returncode is None:
            user.end(signal.SIGKILL)
    await_server_end(data_dir)


def await_server_end(data_dir: Path) -> None:
    """Return when there is no keeper: it holds this lock until the server has ended."""
    with (data_dir / "keeper.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)


def server_of(data_dir: Path) -> psutil.Process:
    return psutil.Process(int((data_dir / "cluster" / "postmaster.pid").read_text().split("\n", 1)[0]))


def keeper_of(data_dir: Path) -> psutil.Process:
    command = ["-P", "-m", "txmsg.broker.embedded.keeper", str(data_dir)]
    processes = psutil.process_iter(["cmdline"])
    [keeper] = [each for each in processes if (each.info["cmdline"] or [])[1:] == command]
    return keeper


def numbers(url: str) -> list[int]:
    with psycopg.connect(url, connect_timeout=10) as connection:
        return [row[0] for row in connection.execute("select n from number order by n")]


def insert(url: str, n: int) -> None:
    with psycopg.connect(url, connect_timeout=10) as connection:
        connection.execute("create table if not exists number (n int)")
        connection.execute("insert into number values (%s)", [n])


def test_commits_are_durable_and_readable_by_the_tailer(data_dir: Path) -> None:
    with EmbeddedPostgres(data_dir) as postgres, psycopg.connect(postgres.url("postgres")) as connection:
        for name, value in {
            "fsync": "on",
            "synchronous_commit": "on",
            "full_page_writes": "on",
            "wal_level": "logical",
            "data_checksums": "on",
            "max_slot_wal_keep_size": "4GB",
            "listen_addresses": "",
        }.items():
            assert connection.execute("select current_setting(%s)", [name]).fetchone() == (value,), name


def test_starting_and_stopping_twice_is_allowed(data_dir: Path) -> None:
    postgres = EmbeddedPostgres(data_dir)
    postgres.stop()
    postgres.start()
    postgres.start()
    assert postgres.running
    postgres.stop()
    postgres.stop()
    assert not postgres.running


def test_creating_a_database_twice_is_allowed(data_dir: Path) -> None:
    with EmbeddedPostgres(data_dir) as postgres:
        insert(postgres.create_database("shop-1"), 1)
        assert numbers(postgres.create_database("shop-1")) == [1]
        assert numbers(postgres.create_database("copy", template="shop-1")) == [1]
        postgres.drop_database("shop-1")
        postgres.drop_database("shop-1")


def test_the_keeper_imports_nothing_from_the_working_directory(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The working directory of root may be that of another user, or /tmp."""
    (tmp_path / "psutil.py").write_text("raise SystemExit('planted')\n")
    monkeypatch.chdir(tmp_path)
    with EmbeddedPostgres(data_dir) as postgres:
        assert postgres.running


def test_two_processes_share_the_server_until_the_last_one_ends(data_dir: Path, start_user: StartUser) -> None:
    first, second = start_user(), start_user()
    url = first.await_ready()
    assert second.await_ready() == url
    server = server_of(data_dir)
    first.leave()
    assert server.is_running()
    insert(url, 1)
    assert server_of(data_dir) == server
    second.leave()
    await_server_end(data_dir)
    assert not EmbeddedPostgres(data_dir).running


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL], ids=lambda how: how.name)
def test_the_server_stops_when_its_last_user_ends_by(
    how: signal.Signals, data_dir: Path, start_user: StartUser
) -> None:
    first, second = start_user(), start_user()
    first.await_ready()
    second.await_ready()
    first.end(how)
    assert EmbeddedPostgres(data_dir).running
    second.end(how)
    await_server_end(data_dir)
    assert not EmbeddedPostgres(data_dir).running


def test_commits_survive_a_killed_server(data_dir: Path) -> None:
    with EmbeddedPostgres(data_dir) as postgres:
        insert(postgres.create_database(), 1)
        postgres.kill()
        assert not postgres.running
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(postgres.url())
        postgres.start()
        assert numbers(postgres.url()) == [1]
        postgres.restart(crash=True)
        insert(postgres.url(), 2)
        postgres.restart()
        assert numbers(postgres.url()) == [1, 2]


def test_commits_survive_when_all_processes_are_killed_at_once(data_dir: Path, start_user: StartUser) -> None:
    user = start_user()
    insert(user.await_ready(), 1)
    server = server_of(data_dir)
    killed = [keeper_of(data_dir), server]
    for process in killed:
        process.kill()
    psutil.wait_procs(killed, timeout=30)  # until it is gone, a killed server may still accept a connection
    user.end(signal.SIGKILL)
    assert (data_dir / "cluster" / "postmaster.pid").exists()
    with EmbeddedPostgres(data_dir) as postgres:
        assert numbers(postgres.url()) == [1]


def test_a_reused_pid_of_a_dead_server_does_not_prevent_a_start(data_dir: Path) -> None:
    with EmbeddedPostgres(data_dir) as postgres:
        content = (data_dir / "cluster" / "postmaster.pid").read_text()
        postgres.kill()
        (data_dir / "cluster" / "postmaster.pid").write_text(
            content.replace(content.split("\n")[0], str(os.getpid()), 1)
        )
        postgres.start()
        assert postgres.running


def test_a_stop_waits_for_the_server_when_the_keeper_is_stopping_it(data_dir: Path) -> None:
    class LeftLongAgo(EmbeddedPostgres):
        def _leave(self) -> None:
            super()._leave()
            until(lambda: is_locked(data_dir / "users.lock", fcntl.LOCK_SH))

    server = LeftLongAgo(data_dir)
    server.start()
    server.stop()
    assert not server.running


def test_a_server_with_a_killed_keeper_is_adopted_by_the_next_user(data_dir: Path, start_user: StartUser) -> None:
    user = start_user()
    user.await_ready()
    server = server_of(data_dir)
    keeper_of(data_dir).kill()
    await_server_end(data_dir)
    user.leave()
    assert server.is_running()
    with EmbeddedPostgres(data_dir):
        assert server_of(data_dir) == server
    assert not EmbeddedPostgres(data_dir).running


def test_a_watched_server_that_was_killed_is_restarted_with_backoff(
    data_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with EmbeddedPostgres(data_dir) as postgres:
        insert(postgres.create_database(), 1)
        watch = ServerWatch(postgres, 0.0)
        for now, delay_s in ((10.0, 0.5), (20.0, 1.0)):
            watch.step(now)
            assert not caplog.messages
            server_of(data_dir).kill()
            await_server_end(data_dir)
            watch.step(now + 1)
            assert f"has ended by itself, perhaps killed; it is started again in {delay_s:g} s" in caplog.text
            watch.step(now + 1 + delay_s / 2)
            assert not postgres.running
            watch.step(now + 1 + delay_s)
            assert numbers(postgres.url()) == [1]
            assert f"{data_dir} runs again" in caplog.messages[-1]
            caplog.clear()


def test_a_watched_server_that_cannot_start_is_retried_with_the_reason_logged(
    data_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with EmbeddedPostgres(data_dir) as postgres:
        watch = ServerWatch(postgres, 0.0)
        conf = data_dir / "cluster" / "postgresql.conf"
        good = conf.read_text()
        conf.write_text(f"{good}no_such_setting = 1\n")
        postgres.kill()
        watch.step(1.0)
        watch.step(1.5)
        assert "no_such_setting" in caplog.messages[-1]
        assert "it is tried again in 1 s" in caplog.messages[-1]
        conf.write_text(good)
        watch.step(2.0)
        assert not postgres.running
        watch.step(2.5)
        assert postgres.running


def test_a_watched_server_with_a_killed_keeper_gets_another(data_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    with EmbeddedPostgres(data_dir) as postgres:
        server = server_of(data_dir)
        watch = ServerWatch(postgres, 0.0)
        keeper_of(data_dir).kill()
        await_server_end(data_dir)
        watch.step(1.0)
        watch.step(1.5)
        assert postgres.is_kept
        assert server_of(data_dir) == server
        assert not caplog.messages
    assert not postgres.running


def test_a_cluster_left_unfinished_by_initdb_is_recreated(data_dir: Path) -> None:
    (data_dir / "cluster.new").mkdir(parents=True)
    (data_dir / "cluster.new" / "PG_VERSION").write_text("18\n")
    with EmbeddedPostgres(data_dir) as postgres:
        assert postgres.running
    assert not (data_dir / "cluster.new").exists()


def test_a_file_is_flushed_before_its_rename_and_its_directory_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[object] = []
    fsync, rename = os.fsync, Contents.rename

    def noted_fsync(fd: int) -> None:
        done.append("directory" if stat.S_ISDIR(os.fstat(fd).st_mode) else os.fstat(fd).st_size)
        fsync(fd)

    def noted_rename(contents: Contents, name: str, new_name: str) -> None:
        done.append(new_name)
        rename(contents, name, new_name)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(Contents, "rename", noted_rename)
    with contents_of(tmp_path) as contents:
        contents.write("postgresql.conf", b"include 'txmsg.conf'\n")
    assert done == [21, "postgresql.conf", "directory"]


def test_access_lines_moved_aside_by_an_upgrade_are_reported_once(
    data_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The file as the former version left it, with two lines of an administrator."""
    with EmbeddedPostgres(data_dir):
        assert not caplog.messages
    initdb = "# comment\nlocal   all  all   trust\nhost all all ::1/128 trust\nlocal replication all trust\n"
    access = data_dir / "cluster" / "pg_hba.conf"
    for more, told in (("", 0), ("host all all 10.0.0.0/8 scram-sha-256 # LAN\nhost replication all samenet md5\n", 1)):
        access.write_text(initdb + more)
        for _ in range(2):
            with EmbeddedPostgres(data_dir):
                assert len(caplog.messages) == told
    assert f"2 lines of pg_hba.conf in {data_dir}/cluster, as for TCP or a standby, do not apply" in caplog.text
    assert "pg_hba_own.conf" in caplog.text
    assert access.with_name("pg_hba.conf.before").read_text() == initdb + more


def test_a_directory_may_be_given_as_a_string(tmp_path: Path) -> None:
    assert EmbeddedPostgres(str(tmp_path)).data_dir == EmbeddedPostgres(tmp_path).data_dir == tmp_path.resolve()


def test_a_directory_too_long_for_a_socket_with_odd_characters_works(tmp_path: Path) -> None:
    with EmbeddedPostgres(tmp_path / ("it's 100 % odd & long " * 6)) as postgres:
        insert(postgres.create_database(), 1)
        assert numbers(postgres.url()) == [1]


def test_an_unusable_directory_is_named_in_the_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"file/pg cannot be used: Not a directory, or .*--data-dir"):
        EmbeddedPostgres(tmp_path / "file" / "pg").start()


@pytest.mark.skipif(bool(namespaces.why_not()), reason=namespaces.why_not())
def test_a_server_starts_without_a_writable_tmp(memory_dir: Path) -> None:
    directory = memory_dir / ("long" * 30)
    program = (
        "import sys; from pathlib import Path; from txmsg.broker.embedded import EmbeddedPostgres\n"
        f"with EmbeddedPostgres(Path({str(directory)!r})) as postgres: print(postgres.create_database())"
    )
    command = namespaces.with_read_only_tmp(sys.executable, "-c", program)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert (done.returncode, done.stderr) == (0, "")
    assert "%2Frun%2Ftxmsg-" in done.stdout, "where only root makes directories: the test is root's"


def test_the_socket_of_a_long_directory_is_placed_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "_ROOT_PARENT", tmp_path / "absent")
    monkeypatch.setattr(place, "_SOCKET_PARENTS", (tmp_path / "absent", tmp_path))
    long = DataDirectory(tmp_path / ("long" * 30))
    assert long.socket_dir.parent == tmp_path
    monkeypatch.setattr(place, "_SOCKET_PARENTS", (tmp_path / "absent",))
    with pytest.raises(StorageError, match=r"absent writable, or choose a shorter --data-dir"):
        keeper._prepare_socket(long)


def test_a_process_without_write_access_finds_the_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This happens in a unit with ProtectSystem=strict, for which /run is not writable."""
    with EmbeddedPostgres(tmp_path / ("long" * 30)) as postgres:
        postgres.create_database()
        parent, access = DataDirectory(postgres.data_dir).socket_dir.parent, os.access
        monkeypatch.setattr(os, "access", lambda path, *args, **named: path != parent and access(path, *args, **named))
        insert(EmbeddedPostgres(postgres.data_dir).url(), 1)
        assert DataDirectory(postgres.data_dir).socket_dir.parent == parent
    assert not DataDirectory(postgres.data_dir).socket_file.exists()


def test_a_user_without_a_name_is_refused_because_postgresql_needs_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(uid: int) -> pwd.struct_passwd:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with pytest.raises(StorageError, match=r"needs a user with a name.*add a line to /etc/passwd"):
        cluster.create_cluster(DataDirectory(tmp_path))
    monkeypatch.delenv("HOME")
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    with pytest.raises(MisuseError, match=r"has no home directory: set HOME, or name a directory with --data-dir"):
        default_data_dir()


def test_an_error_shows_the_log_of_the_server(data_dir: Path) -> None:
    postgres = EmbeddedPostgres(data_dir)
    with postgres:
        pass
    with (data_dir / "cluster" / "postgresql.conf").open("a") as conf:
        conf.write("no_such_setting = 1\n")
    with pytest.raises(StorageError, match="no_such_setting"):
        postgres.start()
    assert not postgres.running


def test_a_server_that_is_not_started_cannot_be_killed(data_dir: Path) -> None:
    with pytest.raises(MisuseError, match=r"call start\(\) first"):
        EmbeddedPostgres(data_dir).kill()


def test_a_directory_of_another_user_is_not_used_for_the_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, "_ROOT_PARENT", tmp_path)
    monkeypatch.setattr(place, "_SOCKET_PARENTS", (tmp_path,))
    long = DataDirectory(tmp_path / ("long" * 30))
    (tmp_path / "elsewhere").mkdir()
    long.socket_dir.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match=r"txmsg-\w+ belongs to another user: remove it"):
        keeper._prepare_socket(long)
    if os.geteuid() == 0:
        long.socket_dir.unlink()
        long.socket_dir.mkdir()
        os.chown(long.socket_dir, 65534, 65534)
        with pytest.raises(StorageError, match=r"txmsg-\w+ belongs to another user: remove it"):
            keeper._prepare_socket(long)
