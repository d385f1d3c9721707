"""The live page of the day: turnover, orders by the second, provinces, categories, sellers, and pipeline state.

    python -m examples.trade_dashboard.page --results postgresql://.../dashboard

prints `listening on HOST:PORT` when it answers. The page itself is web/body.html and web/page.css, of the elements of
txmsg.ops.page; this module says what stands in it.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click
import psycopg

from txmsg.errors import TxmsgError
from txmsg.ops.page.board import BoardSnapshot
from txmsg.ops.page.options import web_tls_options
from txmsg.ops.page.page import BilingualText, Page
from txmsg.ops.page.server import PageConfig, serve
from txmsg.runtime.signals import stop_on_signals
from txmsg.settings.common import TlsConfig
from txmsg.wire.address import check_address

from . import figures
from .figures import Entry, Figures
from .names import CATEGORIES, PROVINCES, Name, seller_name

PAGE: Final = Page(
    directory=Path(__file__).parent / "web",
    words={
        "title": BilingualText("Live trades", "交易实况"),
        "turnover": BilingualText("Turnover", "成交额"),
        "orders": BilingualText("Orders", "订单"),
        "orders_now": BilingualText("Orders per second", "每秒订单"),
        "conversion": BilingualText("Paid conversion", "支付转化率"),
        "refunded": BilingualText("Refunds", "退款"),
        "orders_per_second": BilingualText("Per second, up to 10 minutes", "每秒走势，至多 10 分钟"),
        "orders_line": BilingualText("ordered", "下单"),
        "paid_line": BilingualText("paid", "支付"),
        "provinces": BilingualText("Provinces", "省份"),
        "categories": BilingualText("Categories", "品类"),
        "sellers": BilingualText("Top sellers", "热销店铺"),
        "by_turnover": BilingualText("by turnover", "按成交额"),
        "part_trade_service": BilingualText("Trade service", "交易服务"),
        "part_broker": BilingualText("Broker", "消息服务器"),
        "part_tailer": BilingualText("Tailer", "日志同步"),
        "part_metaq": BilingualText("MetaQ", "MetaQ"),
        "part_stock": BilingualText("Stock", "库存"),
        "part_spark": BilingualText("Spark", "Spark"),
        "part_postgres": BilingualText("PostgreSQL", "PostgreSQL"),
        "paid": BilingualText("paid", "已支付"),
        "shipped": BilingualText("shipped", "已发货"),
        "in_doubt": BilingualText("in doubt", "待定"),
        "waiting_messages": BilingualText("waiting", "待投递"),
        "behind": BilingualText("behind", "延迟"),
        "rows": BilingualText("messages", "积压消息"),
        "batch_time": BilingualText("batch time", "批次耗时"),
        "batch_messages": BilingualText("in it", "批次消息"),
        "late": BilingualText("late events", "迟到事件"),
        "bad": BilingualText("bad messages", "坏消息"),
        "latency": BilingualText("Commit to figure", "提交到统计"),
        "latency_now": BilingualText("now (p50)", "当前 (p50)"),
        "latency_p99": BilingualText("p99, 1 min", "p99，1 分钟"),
    },
)
"""The files of the page and its texts. `part_NAME` names the parts in the `--health` file."""

_RATE_OVER_S: Final = 5


def read(connection: psycopg.Connection[Any]) -> BoardSnapshot:
    """Return the values of the page, in one snapshot. The connection is in no transaction, before and after."""
    found = figures.read(connection)
    return BoardSnapshot(figures=shown(found), written_at=found.total.written_at, through_at=found.total.through_at)


def shown(found: Figures) -> dict[str, Any]:
    """Return the figures as the page's elements take them."""
    total = asdict(found.total)
    del total["written_at"], total["through_at"]  # the frame has them
    seconds = _by_second(found.seconds, found.total.through_at)
    last = seconds["orders"][-_RATE_OVER_S:]
    return {
        "total": total,
        "conversion": found.total.paid / found.total.orders if found.total.orders else None,
        "orders_per_second": sum(last) / len(last) if last else None,
        "seconds": seconds,
        "provinces": [_named(each, PROVINCES) for each in found.provinces],
        "categories": [_named(each, CATEGORIES) for each in found.categories],
        "sellers": [_entry(each, seller_name(each.key)) for each in found.sellers],
        "latency_now_ms": found.latency_now.p50_ms,
        "latency_p99_ms": found.latency.p99_ms,
        "batch_ms": found.batch and found.batch.batch_ms,
        "batch_messages": found.batch and found.batch.messages,
    }


def _by_second(seconds: Sequence[Entry[datetime]], through_at: datetime | None) -> dict[str, Any]:
    """Return one number for each second from the first on, without the second still being counted."""
    if not seconds or through_at is None:
        return {"from": 0, "orders": [], "paid": []}
    by_second = {_epoch_s(each.key): each for each in seconds}
    first, end = min(by_second), _epoch_s(through_at)
    entries = [by_second.get(second) for second in range(first, end)]
    return {
        "from": first,
        "orders": [0 if each is None else each.orders for each in entries],
        "paid": [0 if each is None else each.paid for each in entries],
    }


def _epoch_s(at: datetime) -> int:
    return int(at.astimezone(UTC).timestamp())


def _named(entry: Entry[str], names: Mapping[str, Name]) -> dict[str, Any]:
    return _entry(entry, names.get(entry.key) or Name(code=entry.key, chinese=entry.key, english=entry.key))


def _entry(entry: Entry[str], name: Name) -> dict[str, Any]:
    return {
        "key": entry.key,
        "name": {"en": name.english, "zh": name.chinese},
        "orders": entry.orders,
        "paid": entry.paid,
        "turnover_cents": entry.turnover_cents,
    }


@click.command(
    epilog="\b\nExample:\n  python -m examples.trade_dashboard.page --results postgresql://localhost/dashboard\n\n"
    "Prints `listening on HOST:PORT` when it answers: open http://HOST:PORT/. SIGTERM and Ctrl-C end it in order. "
    "Programs read what is shown at /figures."
)
@click.option(
    "--results",
    metavar="URL",
    required=True,
    envvar="DASHBOARD_URL",
    show_envvar=True,
    help="The PostgreSQL with the figures.",
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default="127.0.0.1:7780",
    show_default=True,
    help="Where to serve. Port 0 takes a free one.",
)
@click.option(
    "--health",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A JSON file that somebody writes anew every second: which parts are up, and what they measure.",
)
@click.option(
    "--stale-after",
    metavar="SECONDS",
    type=click.FloatRange(min=0.1),
    default=5.0,
    show_default=True,
    help="How long without new figures until the page says so.",
)
@click.option(
    "--http-listen",
    metavar="HOST:PORT",
    default="",
    help="Where to serve /metrics, /livez and /readyz. Port 0 takes a free one.  [default: not served]",
)
@click.option(
    "--login",
    metavar="HOST:PORT[,HOST:PORT]...",
    default="",
    help="Brokers, for whose users the page is: it asks for a token.  [default: it is for everybody]",
)
@web_tls_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object when ready.")
def main(
    *,
    results: str,
    listen: str,
    health: Path | None,
    stale_after: float,
    http_listen: str,
    login: str,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_client_ca: Path | None,
    insecure: bool,
    as_json: bool,
) -> None:
    """Serve the live page of the trade dashboard: figures as they come, pushed to every browser that looks."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)-7s %(name)s: %(message)s")

    def tell(address: str) -> None:
        click.echo(json.dumps({"listening": address}) if as_json else f"listening on {address}")

    try:
        config = PageConfig(
            database=results,
            channel=figures.CHANNEL,
            listen=listen,
            health=health,
            stale_after_s=stale_after,
            http_listen=http_listen,
            login=[check_address("--login", each) for each in login.split(",")] if login else (),
            tls=TlsConfig(cert=tls_cert, key=tls_key, client_ca=tls_client_ca),
            insecure=insecure,
        )
        asyncio.run(_serve(config, tell))
    except TxmsgError as exc:
        raise click.ClickException(str(exc)) from exc


async def _serve(config: PageConfig, tell: Callable[[str], None]) -> None:
    await serve(config, PAGE, read, tell, stop_on_signals())


if __name__ == "__main__":
    main()
