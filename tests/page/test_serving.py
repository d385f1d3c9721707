"""Figures are read when the database notifies, once for all browsers, and pushed to each at its own pace."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

from examples.trade_dashboard import figures
from examples.trade_dashboard.page import PAGE, main, read
from tests.page.conftest import ShowPage
from txmsg.errors import MisuseError
from txmsg.ops.page import app, watch
from txmsg.ops.page.board import BoardSnapshot
from txmsg.ops.page.listening import PageServer
from txmsg.ops.page.server import PageConfig, serve

WAIT_S = 60.0


class Served:
    """A page server in the test's own event loop. `n`, its one figure, is the number of reads."""

    def __init__(self, database: str) -> None:
        self.begun = time.monotonic()
        self._database = database
        self._reads = itertools.count(1)
        self._writers: list[asyncio.StreamWriter] = []
        self.address = ""
        self.ballast = "x" * 200_000
        self.trouble: Exception | None = None
        self.troubled = threading.Event()

    def read(self, connection: psycopg.Connection[Any]) -> BoardSnapshot:
        if self.trouble is not None:
            self.troubled.set()
            raise self.trouble
        now = connection.execute("select now()").fetchone()
        assert now is not None
        return BoardSnapshot(
            figures={"n": next(self._reads), "ballast": self.ballast}, written_at=now[0], through_at=now[0]
        )

    async def notify(self, times: int = 1) -> None:
        """Notify of new figures."""

        def say() -> None:
            with psycopg.connect(self._database, autocommit=True, connect_timeout=10) as connection:
                for _ in range(times):
                    connection.execute("notify news")

        await asyncio.to_thread(say)

    async def get(self, path: str) -> asyncio.StreamReader:
        """Return the answer to a request, from its first line on."""
        host, _, port = self.address.rpartition(":")
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)  # unread data does not accumulate in here
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, (host, int(port)))
        reader, writer = await asyncio.open_connection(sock=connection)
        self._writers.append(writer)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {self.address}\r\n\r\n".encode())
        return reader

    def hang_up(self) -> None:
        """Close all connections."""
        for writer in self._writers:
            writer.close()

    async def bulletins(self) -> AsyncIterator[dict[str, Any]]:
        """Yield the bulletins pushed to a browser, as fast as the test reads them."""
        reader = await self.get("/events")
        async for line in _lines(reader):
            if line.startswith(b"data: "):
                yield json.loads(line.removeprefix(b"data: "))


async def next_figures(bulletins: AsyncIterator[dict[str, Any]]) -> dict[str, Any]:
    """Return the next bulletin with figures: before the first read there are none."""
    while (bulletin := await anext(bulletins))["figures"] is None:
        pass
    return bulletin


async def _lines(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield lines of any length: a bulletin arrives in chunks, with their sizes between them."""
    body = b""
    while line := await reader.readline():
        if line == b"\r\n":
            break
    while size := int(await reader.readline() or b"0", 16):
        body += (await reader.readexactly(size + 2))[:-2]
        *whole, body = body.split(b"\n")
        for each in whole:
            yield each


@asynccontextmanager
async def serving(database: str) -> AsyncIterator[Served]:
    served = Served(database)
    stop = asyncio.Event()
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    config = PageConfig(database=database, channel="news", listen="127.0.0.1:0")
    task = asyncio.create_task(serve(config, PAGE, served.read, ready.set_result, stop))
    try:
        served.address = await asyncio.wait_for(ready, WAIT_S)
        yield served
    finally:
        stop.set()
        await asyncio.wait_for(task, WAIT_S)
        served.hang_up()


async def test_new_figures_are_pushed_on_notification(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_READ_EVERY_S_MAX", 3600.0)  # none are found by polling

    async with serving(database_url) as served:
        bulletins = served.bulletins()
        before = (await next_figures(bulletins))["figures"]["n"]
        for _ in range(3):
            await served.notify()
            while (bulletin := await next_figures(bulletins))["figures"]["n"] <= before:
                pass
            assert bulletin["age_ms"] < WAIT_S * 1000
            before = bulletin["figures"]["n"]


async def test_browser_that_does_not_read_does_not_block_others_and_then_gets_the_newest(database_url: str) -> None:
    async with serving(database_url) as served:
        served.ballast *= 5
        asleep = await served.get("/events")  # its buffers fill up
        seen: set[int] = set()
        bulletins = served.bulletins()
        while len(seen) < 15:
            seen.add((await next_figures(bulletins))["figures"]["n"])
            await served.notify()
        newest = max(seen)
        late = []
        async for line in _lines(asleep):
            if line.startswith(b"data: "):
                late.append((json.loads(line.removeprefix(b"data: "))["figures"] or {"n": 0})["n"])
            if late and late[-1] >= newest:
                break
        assert len(late) < 10, "it was sent old figures, too"
        assert late == sorted(late)


async def test_figures_are_read_at_most_ten_times_a_second(database_url: str) -> None:
    async with serving(database_url) as served:
        for _ in range(10):
            await served.notify(times=20)
        bulletin = await next_figures(served.bulletins())
        assert bulletin["figures"]["n"] <= (time.monotonic() - served.begun) * 10 + 1


async def test_lost_database_connection_is_reopened(database_url: str) -> None:
    async with serving(database_url) as served:
        bulletins = served.bulletins()
        bulletin = await next_figures(bulletins)
        before = bulletin["figures"]["n"]
        with psycopg.connect(database_url, autocommit=True, connect_timeout=10) as connection:
            ended = connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity "
                "where datname = current_database() and application_name = 'txmsg-page'"
            ).fetchall()
        assert ended == [(True,)], "one connection reads for all browsers, and listens"
        while bulletin["figures"]["n"] < before + 2:  # the first may have been read before the end
            await served.notify()
            bulletin = await anext(bulletins)


async def test_invalid_figures_are_read_again_once_they_are_valid(database_url: str) -> None:
    """For example, after a table was emptied by hand: the page need not be restarted."""

    async with serving(database_url) as served:
        served.trouble = AssertionError("create_tables was not called")
        bulletins = served.bulletins()
        assert await asyncio.to_thread(served.troubled.wait, WAIT_S)
        served.trouble = None
        await next_figures(bulletins)


async def test_page_is_served_while_the_database_is_down_and_reports_it() -> None:
    async with serving("postgresql://127.0.0.1:1/nothing") as served:
        bulletin = await anext(served.bulletins())
        assert (bulletin["figures"], bulletin["parts"]) == (None, {"figures": False})
        page = await served.get("/")
        assert (await page.readline()).split()[1] == b"200"


async def test_request_before_the_first_read_of_figures_gets_503(database_url: str) -> None:
    async with serving(database_url) as served:
        statuses: list[bytes] = []
        while not statuses or statuses[-1] != b"200":
            statuses.append((await (await served.get("/figures")).readline()).split()[1])
        assert set(statuses[:-1]) <= {b"503"}


async def test_browsers_above_the_limit_are_asked_to_retry(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "BROWSERS_MAX", 1)

    async with serving(database_url) as served:
        await anext(served.bulletins())
        refused = await served.get("/events")
        assert (await refused.readline()).split()[1] == b"503"
        served.hang_up()
        status = b"503"
        while status == b"503":  # until the server has seen that the first is gone
            status = (await (await served.get("/events")).readline()).split()[1]
        assert status == b"200"


async def test_open_pages_are_released_when_the_server_stops(database_url: str) -> None:
    async with serving(database_url) as served:
        bulletins = served.bulletins()
        await anext(bulletins)
    async with asyncio.timeout(WAIT_S):
        async for _ in bulletins:  # which ends
            pass


async def test_address_in_use_is_refused(database_url: str) -> None:
    async with serving(database_url) as served:
        config = PageConfig(database=database_url, channel="news", listen=served.address)
        with pytest.raises(MisuseError, match=f"cannot listen on {served.address}: another program"):
            await serve(config, PAGE, served.read, print, asyncio.Event())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--results", "nonsense://"], "Error: the URL of the figures is not a database URL"),
        (["--results", "postgresql://localhost/x", "--listen", "nowhere"], "is not of the form HOST:PORT"),
        ([], "Missing option '--results'"),
    ],
)
def test_invalid_options_are_refused(options: list[str], said: str) -> None:
    result = CliRunner(env={"DASHBOARD_URL": ""}).invoke(main, options)
    assert result.exit_code != 0
    assert said in result.output


def test_page_server_stops_gracefully_while_pages_are_open(show_page: ShowPage) -> None:
    with show_page() as shown:
        with shown.page.events() as bulletins:
            bulletin = next(bulletin for bulletin in bulletins if bulletin["figures"])
            assert bulletin["figures"]["total"]["turnover_cents"] == shown.total("turnover_cents")
            assert shown.page.stop() == 0
            for _ in bulletins:  # data sent before; then the end
                pass
        log = shown.page.log.read_text()
        assert "Traceback" not in log
        assert "ERROR" not in log


def test_empty_tables_are_unwritten_figures(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True, connect_timeout=10) as connection:
        figures.create_tables(connection)
        snapshot = read(connection)
    assert snapshot.written_at is None
    assert snapshot.figures["total"]["orders"] == 0


@pytest.mark.parametrize(
    ("proxies", "client"), [(None, "127.0.0.1"), ("10.0.0.9", "127.0.0.1"), ("127.0.0.1", "8.8.8.8")]
)
async def test_client_address_is_taken_from_configured_proxies_only(
    proxies: str | None, client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    async def application(scope: Any, *_: Any) -> None:
        seen.append((scope["client"][0], scope["scheme"]))

    monkeypatch.delenv("FORWARDED_ALLOW_IPS", raising=False)
    if proxies is not None:
        monkeypatch.setenv("FORWARDED_ALLOW_IPS", proxies)
    config = PageServer(application).config
    config.load()
    headers = [(b"x-forwarded-for", b"8.8.8.8"), (b"x-forwarded-proto", b"https")]
    scope = {"type": "http", "scheme": "http", "client": ("127.0.0.1", 4711), "headers": headers}
    await config.loaded_app(scope, None, None)
    assert seen == [(client, "https" if client == "8.8.8.8" else "http")]
