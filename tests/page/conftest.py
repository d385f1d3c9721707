"""A page with figures, and a browser that shows it."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest
from playwright.sync_api import Browser

from examples.trade_dashboard import figures
from tests.conftest import PostgresServer
from tests.page.chromium import HOW_TO_INSTALL, chromium
from tests.page.day import add_day
from tests.page.page_process import PageProcess
from txmsg.ops.demo.browser import find_browser

_numbers = itertools.count(1)
_TELL_EVERY_S = 0.5
_WAIT_S = 60.0


@dataclass(frozen=True)
class ShownPage:
    """A page server on its own database with ten minutes of trade. `health` is the health file that it reads."""

    page: PageProcess
    results: str
    health: Path

    @contextmanager
    def trading(self) -> Iterator[None]:
        """Run trade within the block."""
        command = [sys.executable, "-m", "tests.page.day", self.results, "5"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline().strip().isdigit(), "the writer did not write"
            try:
                yield
            finally:
                writer.communicate(timeout=_WAIT_S)
        assert writer.returncode == 0

    @contextmanager
    def telling(self, parts: Mapping[str, bool], measures: Mapping[str, float]) -> Iterator[None]:
        """Write the state of the parts repeatedly, as their supervisor does."""
        ending = threading.Event()

        def tell() -> None:
            while not ending.wait(_TELL_EVERY_S):
                self.tell(parts, measures)

        self.tell(parts, measures)
        watcher = threading.Thread(target=tell)
        watcher.start()
        try:
            yield
        finally:
            ending.set()
            watcher.join()

    def tell(self, parts: Mapping[str, bool], measures: Mapping[str, float]) -> None:
        """Write the state of the parts, as their supervisor does."""
        new = self.health.with_suffix(".new")
        new.write_text(json.dumps({"parts": parts, "measures": measures}))
        new.replace(self.health)

    def total(self, column: str) -> int:
        """Return a column of figures_total from the database."""
        with psycopg.connect(self.results, connect_timeout=10) as connection:
            (found,) = connection.execute(f"select {column} from figures_total".encode()).fetchone() or (None,)
        assert isinstance(found, int)
        return found


ShowPage = Callable[..., AbstractContextManager[ShownPage]]


@pytest.fixture(scope="module")
def show_page(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> ShowPage:
    """Start page servers with the given options."""

    @contextmanager
    def show(*options: str) -> Iterator[ShownPage]:
        name = f"test_page_{next(_numbers)}"
        directory = tmp_path_factory.mktemp("page")
        health = directory / "health.json"
        results = postgres.create_database(name)
        with psycopg.connect(results, autocommit=True, connect_timeout=10) as connection:
            figures.create_tables(connection)
            add_day(connection, datetime.now(UTC))
        page = PageProcess(results, "--health", str(health), *options, log=directory / "page.log")
        page.start()
        try:
            yield ShownPage(page, results, health)
        finally:
            page.kill()
            postgres.drop_database(name)

    return show


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A Chromium; skips the test if it is not installed."""
    path = find_browser()
    if path is None:
        pytest.skip(HOW_TO_INSTALL)
    with chromium(path) as running:
        yield running
