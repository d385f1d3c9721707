"""Serves a page: the only module that knows all of its parts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from txmsg.checks.logs import PAGE_EMPTY, PAGE_STALE
from txmsg.metrics.figures import Figures
from txmsg.metrics.http import Probes, serving
from txmsg.ops.page.app import new_app
from txmsg.ops.page.board import Board, BoardSnapshot
from txmsg.ops.page.feed import BulletinFeed
from txmsg.ops.page.figures import figures_of
from txmsg.ops.page.health import HealthFile
from txmsg.ops.page.listening import PageServer, listening
from txmsg.ops.page.logged_in import LoggedInUser, LoggedInUsers, asking
from txmsg.ops.page.login import sweep
from txmsg.ops.page.page import Page
from txmsg.ops.page.sessions import LoginSessions
from txmsg.ops.page.watch import Read, TableWatch
from txmsg.settings.common import TlsConfig
from txmsg.wire.address import check_reach
from txmsg.wire.listening import loopback

_BULLETIN_EVERY_S_MAX: Final = 1.0
"""Maximum seconds between bulletins: a browser that hears nothing for some seconds treats the connection as lost."""
_SEND_BUFFER_SIZE_BYTES: Final = 64 * 1024
"""Send buffer of a connection, for a few bulletins, so that a slow browser does not have many old ones before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageConfig:
    """The settings of a page server: the source of its figures, and its addresses."""

    database: str
    """The URL, for libpq, of the PostgreSQL with the figures: postgresql://..."""
    channel: str
    """The channel of its notifications of new figures."""
    listen: str = f"{loopback()}:7780"
    """The HOST:PORT to listen on; port 0 takes a free one."""
    health: Path | None = None
    """The file with the health of the parts. Default: none, and no health is shown."""
    http_listen: str = ""
    """HOST:PORT for /metrics, /livez and /readyz. Default: none are served. Port 0 takes a free one."""
    http_token_file: Path | None = None
    """File with the token of those who read /metrics. Default: none is needed."""
    tls: TlsConfig = field(default_factory=TlsConfig)
    """The TLS settings of the page and of /metrics. Default: no TLS."""
    login: Sequence[str] = ()
    """Addresses of brokers, whose users may see the page. Default: everybody may."""
    insecure: bool = False
    """True if the network itself keeps strangers away."""
    stale_after_s: float = 5.0
    """Seconds without new figures after which the page marks them as stale. Default 5."""

    def __post_init__(self) -> None:
        self.tls.check_http_listen(self.http_listen, self.http_token_file, insecure=self.insecure)
        if self.login:
            check_reach(
                "--listen",
                self.listen,
                "tokens of --login could be read on their way",
                "give --tls-cert and --tls-key, or --insecure if only trusted clients can reach the network",
                is_guarded=self.tls.cert is not None or self.insecure,
            )


async def serve(
    config: PageConfig, page: Page, read: Read, on_ready: Callable[[str], None], stop: asyncio.Event
) -> None:
    """Serve the page until `stop` is set; then end in order, and browsers with it.

    `on_ready` is called once with the address when it answers. Raises MisuseError when it cannot listen there.
    """
    loop = asyncio.get_running_loop()
    feed = BulletinFeed()
    board = Board(
        release=page.release, stale_after_s=config.stale_after_s, clock=time.monotonic, now=lambda: datetime.now(UTC)
    )
    news = asyncio.Event()
    has_read, read_at = False, time.monotonic()

    def show(snapshot: BoardSnapshot) -> None:
        nonlocal has_read, read_at
        has_read, read_at = True, time.monotonic()
        board.show(snapshot)
        news.set()

    def age_s() -> float:
        return time.monotonic() - read_at

    def unready() -> str:
        if not has_read:
            return PAGE_EMPTY.found().what
        stale = PAGE_STALE.found(f"no figures for {age_s():.0f} s")
        return stale.what if age_s() > config.stale_after_s else ""

    async def figures() -> Figures:
        return figures_of(feed, age_s=age_s(), unready=unready())

    def on_read(snapshot: BoardSnapshot) -> None:
        loop.call_soon_threadsafe(show, snapshot)

    watch = TableWatch(config.database, config.channel, read, on_read)
    health = None if config.health is None else HealthFile(config.health, clock=time.monotonic)
    with listening(config.listen, send_buffer_size_bytes=_SEND_BUFFER_SIZE_BYTES) as (listener, address):
        tls = config.tls.of_server()
        watch.start()
        try:
            async with (
                serving(config.http_listen, Probes(figures=figures, unready=unready), tls, config.http_token_file),
                asyncio.TaskGroup() as tasks,
            ):
                visitors = LoggedInUsers(asking(config.login), tasks) if config.login else None
                sessions = LoginSessions[LoggedInUser](
                    time.monotonic,
                    LoggedInUsers.leave,
                    user_of=lambda visitor: visitor.name,
                    is_admin=lambda visitor: visitor.is_admin,
                )
                server = PageServer(new_app(page, feed, visitors, sessions), tls)
                serving_page = tasks.create_task(server.serve(sockets=[listener]))
                sweeping = tasks.create_task(sweep(sessions))
                feeding = tasks.create_task(_feed(feed, board, health, news))
                on_ready(address)  # connections are taken from here on: the socket listens
                await stop.wait()
                feeding.cancel()
                sweeping.cancel()
                feed.close()
                server.should_exit = True
                await serving_page  # a login that is under way lets a visitor in
                sessions.end_all()
        finally:
            watch.stop()


async def _feed(feed: BulletinFeed, board: Board, health: HealthFile | None, news: asyncio.Event) -> None:
    """Put a bulletin whenever there are new figures, and at least one each second."""
    while True:
        try:
            async with asyncio.timeout(_BULLETIN_EVERY_S_MAX):
                await news.wait()
        except TimeoutError:
            pass  # the age of the figures is news enough
        news.clear()
        if health is not None:
            board.show_health(health.read())
        feed.put_bulletin(board.bulletin())
