"""A Notify database, load on it, and tailers that mirror it, into a directory unless a module says where."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.conftest import PostgresServer
from tests.integration.cli_harness import said
from tests.mirror.load import Load
from tests.mirror.rows import make_queues, store
from tests.mirror.tailer_process import TailerProcess
from tests.mirror.test_each_verified_log import ROWS

QUEUES = 3

NewTailer = Callable[..., TailerProcess]


@pytest.fixture
def url(notify_url: str) -> Iterator[str]:
    """A Notify database with the topic `trade`; its mirror is dropped at the end, since a slot blocks dropping it."""
    make_queues(notify_url, "trade", QUEUES)
    yield notify_url
    said("tailer", "drop", "--storage", notify_url, "--yes")


@pytest.fixture
def load(url: str, seed: int) -> Load:
    return Load(url, "trade", QUEUES, seed=seed)


@pytest.fixture
def where(tmp_path: Path) -> Path | str:
    """The directory or address that tailers write to."""
    return tmp_path / "log"


@pytest.fixture
def new_tailer(url: str, where: Path | str, tmp_path: Path) -> Iterator[NewTailer]:
    """Create tailers of the database, not started yet. Depends on `url`, so that they end before it is dropped."""
    with ExitStack() as stack:

        def make(*options: str, storage: str = url, into: Path | str = where, name: str = "tailer") -> TailerProcess:
            return stack.enter_context(TailerProcess(storage, into, *options, said=tmp_path / f"{name}.said"))

        yield make


@pytest.fixture
def tailer(new_tailer: NewTailer) -> TailerProcess:
    return new_tailer()


@pytest.fixture(scope="module")
def table(postgres: PostgresServer, notify_template: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """A database with the ROWS of the verifier's tests, and a topic without messages."""
    name = f"verified_{os.getpid()}_{request.module.__name__.rpartition('.')[2]}"
    url = postgres.create_database(name, template=notify_template)
    make_queues(url, "trade", 2)
    make_queues(url, "idle", 1)
    store(url, ROWS)
    yield url
    postgres.drop_database(name)
