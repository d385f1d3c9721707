"""Verifies a finished day: trade database, log and stock agree. Shares no code with the verified parts.

    python -m examples.trade_dashboard.verify postgresql://user@host:port/postgres /var/lib/metaq

prints one JSON object; the exit status is 1 if anything is wrong. The databases "trades", "stock" and "notify" of the
server are read (whatever database its URL names), and the log in this directory or at this address. What is compared:

- every trade in the database is in the log once, in all its parts, and nothing else is there;
- the trades of an order stand in the log in the order in which they were made;
- every paid order was deducted from stock or is marked short; no item was sold more often than it came in, and no order
  is short of what there is enough of;
- the Notify database holds no half message any more.

What is to be shown to the public comes from here, too: the sums of either side, to the cent.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.rows import dict_row

from txmsg.message import ReceivedMessage
from txmsg.metaq import LogQueue, open_log

TOPIC: Final = "trade.order"
EVENTS: Final = ("created", "paid", "shipped", "refunded")
PARTS: Final = ("buyer", "seller", "province", "category", "item", "quantity", "amount_cents")
FINDINGS_MAX: Final = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """The sums of a day."""

    trades: int
    orders: int
    paid: int
    shipped: int
    refunded: int
    turnover_cents: int
    """Paid minus refunded."""


@dataclass(slots=True, kw_only=True)
class Verdict:
    """The result. All is well if `clean`."""

    database: Sums
    log: Sums
    in_doubt: int
    """Transactions whose half message is still there."""
    missing: int
    """Trades missing in the log, and paid orders unknown to stock."""
    duplicated: int
    """Messages beyond the first one of a trade."""
    phantom: int
    """Messages and deductions without a row in the trade database."""
    differing: int
    """Messages and deductions that differ from the trade database."""
    out_of_order: int
    """Messages before one of an earlier trade of their order, or in another queue."""
    stock_oversold: int
    """Pieces sold that never came in."""
    stock_wrong: int
    """Items whose rest is not stock minus deductions, and orders marked short although there was enough."""
    stock_short: int
    """Paid orders that could not be filled. This is not an error."""
    findings: list[str] = field(default_factory=list)
    """A sentence for each violation, at most FINDINGS_MAX."""

    @property
    def clean(self) -> bool:
        wrong = (self.in_doubt, self.missing, self.duplicated, self.phantom, self.differing, self.out_of_order)
        return not any(wrong) and not self.stock_oversold and not self.stock_wrong and self.database == self.log


def verify(*, trades: str, stock: str, notify: str, log: str) -> Verdict:
    """Compare three databases, each given as conninfo or URL, and a log."""
    found = _Findings()
    orders = {row["order_id"]: row for row in _rows(trades, "select * from orders")}
    in_log = _compare_log(orders, log, found)
    stock_findings = _compare_stock(orders, stock, found)
    [halves] = _rows(notify, "select count(distinct transaction_id) as count from txmsg.half_message")
    in_doubt = halves["count"]
    if in_doubt:
        found.note("in_doubt", f"Notify database: {in_doubt} transactions are undecided")
    return Verdict(
        database=_sums_of(
            (event, row["amount_cents"]) for row in orders.values() for event in EVENTS if _made(row, event)
        ),
        log=in_log,
        in_doubt=in_doubt,
        **{name: found.count[name] for name in ("missing", "duplicated", "phantom", "differing", "out_of_order")},
        **stock_findings,
        findings=found.sentences,
    )


class _Findings:
    """Violations, counted by kind."""

    def __init__(self) -> None:
        self.count: Counter[str] = Counter()
        self.sentences: list[str] = []

    def note(self, kind: str, sentence: str, count: int = 1) -> None:
        self.count[kind] += count
        if len(self.sentences) < FINDINGS_MAX:
            self.sentences.append(sentence)


def _rows(database: str, query: str) -> Iterator[dict[str, Any]]:
    with psycopg.connect(database, row_factory=dict_row) as connection:
        with connection.cursor("verify") as cursor:
            cursor.itersize = 10_000
            yield from cursor.execute(query)


def _made(row: dict[str, Any], event: str) -> bool:
    return row[f"{event}_at_us"] is not None


def _sums_of(trades: Iterator[tuple[str, int]]) -> Sums:
    count: Counter[str] = Counter()
    turnover_cents = 0
    for event, amount_cents in trades:
        count[event] += 1
        turnover_cents += {"paid": amount_cents, "refunded": -amount_cents}.get(event, 0)
    return Sums(
        trades=count.total(),
        orders=count["created"],
        paid=count["paid"],
        shipped=count["shipped"],
        refunded=count["refunded"],
        turnover_cents=turnover_cents,
    )


# ---- the log


def _compare_log(orders: dict[str, dict[str, Any]], log: str, found: _Findings) -> Sums:
    """Compare each message with its order; the sums are those of the log alone."""
    seen: dict[str, tuple[int | None, list[str]]] = {}
    trades: list[tuple[str, int]] = []
    for message in _messages(log):
        where = f"log, queue {message.queue}, offset {message.offset}"
        told = _told(message)
        if told is None:
            found.note("phantom", f"{where}: the message tells of no trade")
            continue
        order_id, event = told["order_id"], told["event"]
        where = f"{where}: order {order_id} {event}"
        trades.append((event, told["amount_cents"]))
        queue, before = seen.setdefault(order_id, (message.queue, []))
        if event in before:
            found.note("duplicated", f"{where} stands there twice")
        elif queue != message.queue or any(EVENTS.index(each) > EVENTS.index(event) for each in before):
            found.note("out_of_order", f"{where} comes after {', '.join(before)} of queue {queue}")
        before.append(event)
        row = orders.get(order_id)
        if row is None or not _made(row, event):
            found.note("phantom", f"{where} is not in the trade database")
        elif differing := _differing(told, message, row):
            found.note("differing", f"{where} differs from the trade database in {', '.join(differing)}")
    for order_id, row in orders.items():
        _, events = seen.get(order_id, (None, []))
        for event in EVENTS:
            if _made(row, event) and event not in events:
                found.note("missing", f"log: order {order_id} {event} is not there")
    return _sums_of(iter(trades))


def _messages(log: str) -> Iterator[ReceivedMessage]:
    with open_log(log) as access:
        wanted = {LogQueue(TOPIC, number): 0 for number in access.topics().get(TOPIC, [])}
        ends = {queue: kept.end for queue, kept in access.ranges(wanted).items()}
        while left := {queue: offset for queue, offset in wanted.items() if offset < ends[queue]}:
            for fetched in access.fetch(left):
                if fetched.error is not None:
                    raise fetched.error
                for batch in fetched.batches:
                    yield from batch.messages()
                    wanted[fetched.queue] = batch.end_offset


def _told(message: ReceivedMessage) -> dict[str, Any] | None:
    """Return the body, or None if it is not a trade."""
    try:
        told = json.loads(message.body)
    except ValueError:
        return None
    is_trade = (
        isinstance(told, dict)
        and isinstance(told.get("order_id"), str)
        and told.get("event") in EVENTS
        and isinstance(told.get("amount_cents"), int)
    )
    return told if is_trade else None


def _differing(told: dict[str, Any], message: ReceivedMessage, row: dict[str, Any]) -> list[str]:
    """Return the fields in which a message differs from its order."""
    order_id, event = row["order_id"], told["event"]
    expected = {name: row[name] for name in PARTS} | {
        "event_id": f"{order_id}-{event}",
        "at_us": row[f"{event}_at_us"],
    }
    differing = [name for name, value in expected.items() if told.get(name) != value]
    if (message.key, message.ordering_key, message.tag) != (order_id, order_id, event):
        differing.append("its key, ordering key or tag")
    return differing


# ---- stock


def _compare_stock(orders: dict[str, dict[str, Any]], database: str, found: _Findings) -> dict[str, int]:
    rows = list(_rows(database, "select order_id, item, quantity, outcome from deductions"))
    known: set[str] = set()
    deducted: Counter[str] = Counter()
    for row in rows:
        order = orders.get(row["order_id"])
        known.add(row["order_id"])
        if order is None or not _made(order, "paid"):
            found.note("phantom", f"stock: order {row['order_id']} is in the deductions, and is not paid")
        elif (order["item"], order["quantity"]) != (row["item"], row["quantity"]):
            found.note("differing", f"stock: order {row['order_id']} was taken for something else: {row}")
        if row["outcome"] == "deducted":
            deducted[row["item"]] += row["quantity"]
    for order_id, order in orders.items():
        if _made(order, "paid") and order_id not in known:
            found.note("missing", f"stock: order {order_id} is paid, and neither deducted nor short")

    short = [row for row in rows if row["outcome"] == "short"]
    left = _compare_pieces(deducted, database, found)
    for row in short:
        if left.get(row["item"], 0) >= row["quantity"]:
            found.note("stock", f"stock: order {row['order_id']} is short of {row['item']}, of which there is enough")
    return {
        "stock_oversold": found.count["oversold"],
        "stock_wrong": found.count["stock"],
        "stock_short": len(short),
    }


def _compare_pieces(deducted: Counter[str], database: str, found: _Findings) -> dict[str, int]:
    """Compare deductions with deliveries; return the rest, by the stock table."""
    stock = {row["item"]: row for row in _rows(database, "select item, initial, available from stock")}
    for item in stock.keys() | deducted.keys():
        initial, left = (stock[item]["initial"], stock[item]["available"]) if item in stock else (0, 0)
        sold = deducted[item]
        if sold > initial:
            found.note("oversold", f"stock: {sold} pieces of {item} were sold, and {initial} came in", sold - initial)
        if left != initial - sold:
            found.note("stock", f"stock: {left} pieces of {item} are left of {initial}, of which {sold} were sold")
    return {item: row["available"] for item, row in stock.items()}


if __name__ == "__main__":
    server, log_place = sys.argv[1:]
    databases = {name: make_conninfo(server, dbname=name) for name in ("trades", "stock", "notify")}
    verdict = verify(**databases, log=log_place)
    print(json.dumps(asdict(verdict) | {"clean": verdict.clean}))
    sys.exit(0 if verdict.clean else 1)
