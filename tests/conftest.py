"""Fixtures of all tests: a real PostgreSQL, a fresh database per test, real broker processes.

By default the embedded PostgreSQL is used, one for the whole run. `pytest --postgres=postgresql://user@host/db` uses a
server of yours (whose user may create databases), `--postgres=testcontainers` one in a container, and `--postgres=15`
(16, 17, 18) a private one of that version, which Maven brings. Tests on MariaDB run on the one that is installed, on
`--mariadb=11.4`, which Maven brings, on 10.11, 11.8 or mysql, which debootstrap brings, or on `--mariadb=URL`; without
any they are skipped. Tests on Kafka run on one that Maven brings, or on `--kafka=HOST:PORT`; without either they are
skipped. Tests of pages look at them in the Chromium that is installed; without one they are skipped. With
`--require-tools` nothing runs where a tool is missing.
"""

from __future__ import annotations

import itertools
import os
import re
import secrets
import shutil
import signal
import threading
import time
import tracemalloc  # noqa: F401 - pytest imports it where garbage is reported, and fails if that reports garbage, too
import uuid
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Protocol
from zlib import crc32

import hypothesis
import psutil
import psycopg
import pytest
from xdist.remote import Producer
from xdist.scheduler import Scheduling, WorkStealingScheduling

from tests import kafka_server, mariadb_server, prestarted, unclosed
from tests.broker_process import BrokerProcess
from tests.kafka_server import ExternalKafka, Kafka, PrivateKafka
from tests.mariadb_server import MariaDBServer, PrivateMariaDB, private_server
from tests.memory_postgres import MemoryPostgres
from tests.postgres_versions import VERSIONS, ExternalPostgres, PrivatePostgres
from txmsg.broker import migrate

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    # A shell starts background jobs so. Programs started by tests would inherit it, which those of users do not.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Slow examples on a busy machine are no failure.
_PROFILE = hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.register_profile("the same in every run", _PROFILE, derandomize=True)
hypothesis.settings.register_profile("new in every run", _PROFILE, derandomize=False)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Run coroutine functions as tests, each on its own event loop."""
    return "asyncio"


StartBroker = Callable[..., BrokerProcess]

_numbers = itertools.count(1)
_CHILDREN_END_S_MAX = 60.0
_RELOAD_S_MAX = 60.0
_SHARED = ({"spark", "kafka", "kafka_cluster"}, {"browser"})
"""Fixtures that start a JVM or several; and the one that starts a browser."""
_PARAMETER_OF = {"postgres": re.compile(r"postgres|psycopg|asyncpg|pg8000"), "mariadb": re.compile(r"mariadb|mysql")}
_RUN_DIR = "TXMSG_TESTS_RUN_DIR"
_MEMORY = Path("/dev/shm")
_MEMORY_BYTES_MIN = 3 * 1024**3
"""More than all servers of a run need."""
_SMALL_LOG = {"wal_compression": "off", "min_wal_size": "80MB", "max_wal_size": "256MB"}
"""For a server in memory, where compressing its WAL would cost more than storing it."""


class PostgresServer(Protocol):
    """The interface of a PostgreSQL server that tests need; EmbeddedPostgres has it."""

    def url(self, dbname: str = "txmsg") -> str: ...
    def create_database(self, name: str = "txmsg", *, template: str | None = None) -> str: ...
    def drop_database(self, name: str) -> None: ...


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--postgres",
        default="embedded",
        metavar="URL",
        help="the PostgreSQL to test on: 'embedded' (default), 15, 16, 17 or 18 (a private one, of programs "
        "that Maven brings), 'testcontainers', or postgresql://user@host:port/db",
    )
    parser.addoption(
        "--mariadb",
        default="installed",
        metavar="URL",
        help="the MariaDB or MySQL to test on: 'installed' (default), 10.11, 11.4, 11.8 or mysql (a private one, of "
        "programs that Maven or debootstrap brings), or mariadb+pymysql://user@host:port/db",
    )
    parser.addoption("--meets", choices=["postgres", "mariadb"], help="leave out tests that do not use this server")
    parser.addoption(
        "--kafka",
        default="maven",
        metavar="HOST:PORT",
        help="the Kafka to test on: 'maven' (default: of its artifacts, on Java), 'testcontainers', or host:port,...",
    )
    parser.addoption("--rocketmq-rust", metavar="PROGRAM", help="tests/rocketmq/rust, built; else its test is skipped")
    parser.addoption("--require-tools", action="store_true", help="run nothing where a tool of the tests is missing")
    parser.addoption(
        "--fence-races", default=200, type=int, metavar="N", help="races of transactions and checks, per driver (200)"
    )
    parser.addoption(
        "--seed",
        default="fixed",
        metavar="N|random",
        help="what tests that choose at random begin with: a number that a failure has named, 'random' for another one "
        "in every run, and new examples of Hypothesis, or 'fixed' (default) for one of each test's own",
    )
    parser.addoption(
        "--half-open", default=3000, type=int, metavar="N", help="connections that say nothing, of one test (3000)"
    )
    parser.addoption(
        "--fuzz-s", default=1.5, type=float, metavar="SECONDS", help="how long each fuzz test goes on (default 1.5)"
    )
    parser.addoption(
        "--model-s", default=60.0, type=float, metavar="SECONDS", help="how long histories are tried (default 60)"
    )


def _leave_constants_of_modules_out() -> None:
    """Keep Hypothesis from drawing constants of imported modules: they depend on the tests that ran before."""
    try:
        from hypothesis.internal.conjecture import providers
        from hypothesis.internal.constants_ast import Constants
    except ImportError:
        return  # a later Hypothesis has it elsewhere; tests/unit/test_examples.py fails if it matters
    none = Constants()
    providers._get_local_constants = lambda: none


def pytest_configure(config: pytest.Config) -> None:
    unclosed.install()
    unclosed.install_for_postgresql()
    is_random = config.getoption("--seed") == "random"
    hypothesis.settings.load_profile("new in every run" if is_random else "the same in every run")
    if not is_random:
        _leave_constants_of_modules_out()
    is_main_process = "PYTEST_XDIST_WORKER" not in os.environ
    if is_main_process and config.getoption("--require-tools"):
        from tests.tools import missing

        lines = missing(mariadb=config.getoption("--mariadb"), kafka=config.getoption("--kafka"))
        if lines:
            raise pytest.UsageError("\n".join(["--require-tools: some tests cannot run here", *lines]))
    if is_main_process:
        _make_run_dir(config)


def _make_run_dir(config: pytest.Config) -> None:
    """Create the directory of all servers of a run, in memory if there is enough of it, otherwise on disk.

    Made and removed by the main process: others are killed when Ctrl-C has not ended them within seconds.
    """
    in_memory = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > _MEMORY_BYTES_MIN
    directory = mkdtemp(prefix="txmsg-tests-", dir=_MEMORY if in_memory else None)
    os.environ[_RUN_DIR] = directory
    config.add_cleanup(lambda: _remove(Path(directory)))


def _remove(directory: Path) -> None:
    """Remove the directory, also while servers of a killed process are still stopping: they end without their files."""
    deadline = time.monotonic() + _CHILDREN_END_S_MAX
    while directory.exists() and time.monotonic() < deadline:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling | None:
    """Use the work-stealing scheduler by default, so that all processes finish together."""
    return WorkStealingScheduling(config, log) if config.getvalue("dist") == "load" else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run slow tests first, spread over the processes: started last, they would run alone at the end.

    Tests that share a Spark or a Kafka come first in one process, where none is taken from it: another would start one,
    too. Those that share a browser do so in another process.
    """
    if server := config.getoption("--meets"):
        config.hook.pytest_deselected(items=[item for item in items if not _meets(item, server)])
        items[:] = [item for item in items if _meets(item, server)]
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    shared: list[list[pytest.Item]] = [[] for _ in _SHARED]
    long: list[pytest.Item] = []
    rest: list[pytest.Item] = []
    for item in items:
        names = getattr(item, "fixturenames", ())
        of_group = [group for group, fixtures in zip(shared, _SHARED, strict=True) if fixtures.intersection(names)]
        (of_group or [long if item.get_closest_marker("takes_long") else rest])[0].append(item)
    first = [long[place::processes] for place in range(processes)]
    for number, group in enumerate(shared):
        place = number % processes
        first[place] = group + first[place]
    ordered: list[pytest.Item] = []
    for place in range(processes):  # the scheduler deals out even parts, one after the other
        share = (len(items) - len(ordered)) // (processes - place)
        room = max(0, share - len(first[place]))
        ordered += first[place] + rest[:room]
        del rest[:room]
    items[:] = ordered + rest


def _meets(item: pytest.Item, server: str) -> bool:
    """Return True if a test uses this server. Some fixtures request it by the name of a driver or database, a
    parameter.
    """
    if server in getattr(item, "fixturenames", ()):
        return True
    named = item.callspec.id if isinstance(item, pytest.Function) and hasattr(item, "callspec") else ""
    return bool(_PARAMETER_OF[server].search(named))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Replace lone surrogates in captured logs: xdist cannot send them between processes."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """The seed of tests that choose at random; they name it when they fail."""
    chosen: str = request.config.getoption("--seed")
    if chosen == "random":
        return secrets.randbelow(10**6)
    return crc32(request.node.nodeid.encode()) % 10**6 if chosen == "fixed" else int(chosen)


@pytest.fixture(scope="session", autouse=True)
def no_process_is_left() -> Iterator[None]:
    """Check that every process started by a test has ended when the run ends."""
    yield
    children = psutil.Process().children(recursive=True)
    _, alive = psutil.wait_procs([child for child in children if not _is_helper(child)], timeout=_CHILDREN_END_S_MAX)
    assert not alive, f"tests left these processes: {[(child.pid, child.cmdline()) for child in alive]}"
    prestarted.end_server()


@pytest.fixture(autouse=True)
def signals_are_given_back() -> Iterator[None]:
    """Restore signal handlers after each test: a command that serves, run within the test's process, sets its own."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def no_connection_is_left() -> Iterator[None]:
    """Check that every connection opened by a test or its own fixtures is closed when it ends.

    Otherwise the garbage collector would warn of it in an unrelated test.
    """
    with unclosed.none_left():
        yield


def _is_helper(process: psutil.Process) -> bool:
    """Return True for processes that end with the run: the server of prestarted processes, multiprocessing's helper."""
    if process.pid == prestarted.server_pid():
        return True
    try:
        return any("multiprocessing.resource_tracker" in word for word in process.cmdline())
    except psutil.NoSuchProcess:
        return True


@pytest.fixture(scope="session")
def memory_dir() -> Iterator[Path]:
    """A directory of this process within that of the run, with a path short enough for sockets."""
    with TemporaryDirectory(dir=os.environ[_RUN_DIR]) as directory:
        yield Path(directory)


@pytest.fixture(scope="session")
def postgres(request: pytest.FixtureRequest, memory_dir: Path) -> Iterator[PostgresServer]:
    """A running PostgreSQL with wal_level=logical.

    The embedded one runs in memory and without fsync, which makes a database per test twenty times cheaper: what tests
    end here are processes and connections, and disks are for what the machine itself may lose. Tests on servers of
    their own run on disk, with fsync.
    """
    chosen: str = request.config.getoption("--postgres")
    if chosen == "embedded":
        with MemoryPostgres(memory_dir / "postgres") as server:
            _set(server, fsync="off", **_SMALL_LOG)
            yield server
    elif chosen in VERSIONS:
        with PrivatePostgres(chosen, memory_dir / "pg") as private:
            _set(private, fsync="off", **_SMALL_LOG)
            yield private
    elif chosen == "testcontainers":
        from testcontainers.community.postgres import PostgresContainer

        command = "postgres -c wal_level=logical -c max_connections=200"
        with PostgresContainer("postgres:18", driver=None).with_command(command) as container:
            yield ExternalPostgres(container.get_connection_url())
    else:
        yield ExternalPostgres(chosen)


@pytest.fixture
def fsync(postgres: PostgresServer) -> Iterator[None]:
    """The server of `postgres` with fsync on, as users run it, for tests that check its settings."""
    if not isinstance(postgres, MemoryPostgres | PrivatePostgres):
        yield
        return
    _set(postgres, fsync="on")
    yield
    _set(postgres, fsync="off")


def _set(server: PostgresServer, **settings: str) -> None:
    """Change a setting and return when new sessions see it."""
    with psycopg.connect(server.url("postgres"), autocommit=True, connect_timeout=10) as connection:
        for name, value in settings.items():
            connection.execute(f"alter system set {name} = '{value}'".encode())
        connection.execute("select pg_reload_conf()")
    deadline = time.monotonic() + _RELOAD_S_MAX
    found: dict[str, str] = {}
    while found != settings:
        assert time.monotonic() < deadline, f"the settings are {found}, not {settings}"
        with psycopg.connect(server.url("postgres"), connect_timeout=10) as connection:
            rows = connection.execute(
                "select name, current_setting(name) from unnest(%s::text[]) name", [list(settings)]
            )
            found = dict(rows.fetchall())


@pytest.fixture(scope="session")
def mariadb(request: pytest.FixtureRequest, memory_dir: Path) -> Iterator[MariaDBServer]:
    """A running MariaDB or MySQL; without one the test is skipped."""
    chosen: str = request.config.getoption("--mariadb")
    if chosen in mariadb_server.VERSIONS:
        with private_server(memory_dir / "mariadb", chosen) as private:
            yield private
    elif chosen != "installed":
        yield MariaDBServer(chosen)
    elif mariadb_server.is_installed():
        with PrivateMariaDB(memory_dir / "mariadb") as server:
            yield server
    else:
        pytest.skip(mariadb_server.HOW_TO_INSTALL)


@pytest.fixture(scope="session")
def kafka(request: pytest.FixtureRequest, memory_dir: Path) -> Iterator[Kafka]:
    """A running Kafka, one node unless it is external; without one the test is skipped."""
    chosen: str = request.config.getoption("--kafka")
    if chosen == "testcontainers":
        with kafka_server.kafka_in_container() as running:
            yield running
    elif chosen != "maven":
        yield ExternalKafka(chosen)
    else:
        yield from _private_kafka(memory_dir / "kafka", nodes=1)


@pytest.fixture
def private_kafka(kafka: Kafka) -> PrivateKafka:
    """The private node of `kafka`, for tests of its settings; skipped with an external Kafka."""
    if not isinstance(kafka, PrivateKafka):
        pytest.skip("needs a Kafka with the settings of the tests: leave out --kafka")
    return kafka


@pytest.fixture(scope="session")
def kafka_cluster(memory_dir: Path) -> Iterator[PrivateKafka]:
    """A Kafka of three nodes with three copies of each partition, two of which a write needs."""
    yield from _private_kafka(memory_dir / "kafka-cluster", nodes=3)


def _private_kafka(directory: Path, *, nodes: int) -> Iterator[PrivateKafka]:
    if not kafka_server.is_installed():
        pytest.skip(kafka_server.HOW_TO_INSTALL)
    with PrivateKafka(directory, nodes) as running:
        yield running


@pytest.fixture
def kafka_prefix() -> str:
    """The prefix of all topics of a test, so that tests can share a Kafka."""
    return f"t{uuid.uuid4().hex[:12]}-"


@pytest.fixture
def mariadb_url(mariadb: MariaDBServer) -> Iterator[str]:
    """A fresh, empty database on MariaDB or MySQL: mariadb+pymysql://..., or mysql+pymysql://..."""
    name = _new_name()
    yield mariadb.create_database(name)
    mariadb.drop_database(name)


@pytest.fixture
def database_url(postgres: PostgresServer) -> Iterator[str]:
    """A fresh, empty database."""
    name = _new_name()
    yield postgres.create_database(name)
    postgres.drop_database(name)


@pytest.fixture(scope="session")
def notify_template(postgres: PostgresServer) -> Iterator[str]:
    """The name of a template database at the newest revision."""
    name = _new_name()
    migrate.upgrade(postgres.create_database(name))
    yield name
    postgres.drop_database(name)


@pytest.fixture
def notify_url(postgres: PostgresServer, notify_template: str) -> Iterator[str]:
    """A fresh Notify database at the newest revision, with its own identity."""
    yield from _notify_database(postgres, notify_template)


@pytest.fixture
def other_notify_url(postgres: PostgresServer, notify_template: str) -> Iterator[str]:
    """A second Notify database beside notify_url."""
    yield from _notify_database(postgres, notify_template)


def _notify_database(postgres: PostgresServer, notify_template: str) -> Iterator[str]:
    name = _new_name()
    url = postgres.create_database(name, template=notify_template)
    with psycopg.connect(url, connect_timeout=10) as connection:
        connection.execute("update txmsg.notify_db set shard = gen_random_uuid()")
    yield url
    postgres.drop_database(name)


@pytest.fixture
def start_broker(notify_url: str, tmp_path: Path) -> Iterator[StartBroker]:
    """A function that starts broker processes with options of `txmsg broker`, on notify_url unless storage= is set."""
    brokers: list[BrokerProcess] = []

    def start(*options: str, storage: str = notify_url) -> BrokerProcess:
        broker = BrokerProcess(storage, *options, log=tmp_path / f"broker-{len(brokers)}.log")
        brokers.append(broker)
        broker.start()
        return broker

    yield start
    for broker in brokers:
        broker.kill()


@pytest.fixture
def broker(start_broker: StartBroker) -> BrokerProcess:
    """A running broker on notify_url."""
    return start_broker()


def _new_name() -> str:
    return f"test_{os.getpid()}_{next(_numbers)}"
