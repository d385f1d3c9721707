"""The live page of the lottery: entries, tickets, the backlog, response times, and the state of the parts.

    python -m examples.lottery.page --figures postgresql://.../figures

prints `listening on HOST:PORT` when it answers. The page itself is web/body.html and web/page.css, of the elements of
txmsg.ops.page; this module says what stands in it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import click
import psycopg

from txmsg.errors import TxmsgError
from txmsg.ops.page.board import BoardSnapshot
from txmsg.ops.page.page import BilingualText, Page
from txmsg.ops.page.server import PageConfig, serve
from txmsg.runtime.signals import stop_on_signals

from . import figures
from .figures import Moment

PAGE: Final = Page(
    directory=Path(__file__).parent / "web",
    words={
        "title": BilingualText("12.12 lottery", "双十二抽奖"),
        "entered": BilingualText("Entered", "已参与"),
        "printed": BilingualText("Tickets", "已出票"),
        "waiting_tickets": BilingualText("Waiting for a ticket", "待出票"),
        "backlog_max": BilingualText("most", "峰值"),
        "response": BilingualText("Response time p99", "响应时间 p99"),
        "per_second": BilingualText("Per second", "每秒"),
        "entered_line": BilingualText("entered", "参与"),
        "printed_line": BilingualText("tickets", "出票"),
        "response_line": BilingualText("Response time, ms", "响应时间（毫秒）"),
        "p99": BilingualText("p99", "p99"),
        "p50": BilingualText("p50", "p50"),
        "backlog": BilingualText("waiting", "待出票"),
        "part_activity_1": BilingualText("Page 1", "活动页 1"),
        "part_activity_2": BilingualText("Page 2", "活动页 2"),
        "part_broker": BilingualText("Broker", "消息服务器"),
        "part_printer_1": BilingualText("Printer 1", "出票机 1"),
        "part_printer_2": BilingualText("Printer 2", "出票机 2"),
        "part_printer_3": BilingualText("Printer 3", "出票机 3"),
        "part_printer_4": BilingualText("Printer 4", "出票机 4"),
    },
)
"""The files of the page and its texts. `part_NAME` names the parts in the `--health` file."""


def read(connection: psycopg.Connection[Any]) -> BoardSnapshot:
    """Return the values of the page, in one snapshot. The connection is in no transaction, before and after."""
    moments = figures.read(connection)
    at = moments[-1].at if moments else None
    return BoardSnapshot(figures=shown(moments), written_at=at, through_at=at)


def shown(moments: Sequence[Moment]) -> dict[str, Any]:
    """Return the figures as the page's elements take them. A missing second repeats the one before."""
    if not moments:
        lines: dict[str, list[int]] = {"entered": [], "printed": [], "p50": [], "p99": [], "backlog": []}
        return {
            **dict.fromkeys(("entered", "printed", "backlog", "backlog_max", "p99_ms")),
            "seconds": {"from": 0, **lines},
        }
    seconds = _each_second(moments)
    backlog = [each.entered - each.printed for each in seconds]
    last = seconds[-1]
    steps = list(pairwise(seconds))
    return {
        "entered": last.entered,
        "printed": last.printed,
        "backlog": backlog[-1],
        "backlog_max": max(backlog),
        "p99_ms": next((each.p99_ms for each in reversed(seconds) if each.p99_ms is not None), None),
        "seconds": {
            "from": int(seconds[0].second.timestamp()),
            "entered": [seconds[0].entered, *(after.entered - before.entered for before, after in steps)],
            "printed": [seconds[0].printed, *(after.printed - before.printed for before, after in steps)],
            "p50": [each.p50_ms for each in seconds],
            "p99": [each.p99_ms for each in seconds],
            "backlog": backlog,
        },
    }


def _each_second(moments: Sequence[Moment]) -> list[Moment]:
    by_second = {int(each.second.timestamp()): each for each in moments}
    found: list[Moment] = []
    for second in range(min(by_second), max(by_second) + 1):
        found.append(by_second.get(second) or replace(found[-1], p50_ms=None, p99_ms=None))
    return found


@click.command()
@click.option("--figures", "database", metavar="URL", required=True, help="The database with the figures.")
@click.option("--listen", metavar="HOST:PORT", default="127.0.0.1:7781", show_default=True, help="Where to serve.")
@click.option("--health", metavar="FILE", type=click.Path(path_type=Path), help="File with the state of the parts.")
def main(*, database: str, listen: str, health: Path | None) -> None:
    """Serve the live page of the lottery. Prints `listening on HOST:PORT` when it answers."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    try:
        asyncio.run(_serve(PageConfig(database=database, channel=figures.CHANNEL, listen=listen, health=health)))
    except TxmsgError as exc:
        raise click.ClickException(str(exc)) from exc


async def _serve(config: PageConfig) -> None:
    await serve(config, PAGE, read, lambda address: click.echo(f"listening on {address}"), stop_on_signals())


if __name__ == "__main__":
    main()
