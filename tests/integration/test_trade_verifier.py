"""The verifier of the trade dashboard finds planted defects, and nothing in consistent data."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest

from examples.trade_dashboard.verify import Sums, Verdict, verify
from tests.conftest import PostgresServer
from txmsg import Message
from txmsg.metaq import Log, LogProducer

ORDER = {"buyer": "anne", "seller": "books-01", "province": "hubei", "category": "books", "item": "books-01-1"}
TABLES = {
    "trades": "create table orders (order_id text primary key, buyer text, seller text, province text, category text, "
    "item text, quantity int, amount_cents bigint, created_at_us bigint, paid_at_us bigint, shipped_at_us bigint, "
    "refunded_at_us bigint)",
    "stock": "create table stock (item text primary key, initial int, available int);"
    "create table deductions (order_id text primary key, item text, quantity int, outcome text)",
    "notify": "create schema txmsg; create table txmsg.half_message (transaction_id uuid, n int)",
}


@dataclass
class Day:
    """A finished day: A is paid and shipped, B is paid, short of stock and refunded, C is created only."""

    urls: dict[str, str]
    log: Path
    messages: list[Message] = field(default_factory=list)
    queue_of: Callable[[Message], int] = lambda message: 0

    def run(self, database: str, statement: str, *values: object) -> None:
        with psycopg.connect(self.urls[database]) as connection:
            connection.execute(statement.encode(), values)

    def trade(self, order_id: str, quantity: int, amount_cents: int, **moments: int) -> None:
        row: dict[str, Any] = {"order_id": order_id, **ORDER, "quantity": quantity, "amount_cents": amount_cents}
        for event, at_us in moments.items():
            self.messages.append(told(row, event, at_us))
        row |= {f"{event}_at_us": at_us for event, at_us in moments.items()}
        marks = ", ".join(["%s"] * len(row))
        self.run("trades", f"insert into orders ({', '.join(row)}) values ({marks})", *row.values())

    def verdict(self) -> Verdict:
        with Log(self.log) as log:
            producer = LogProducer(log)
            for message in self.messages:
                producer.send_many([message], queue=self.queue_of(message))
        return verify(**self.urls, log=str(self.log))


def told(row: dict[str, Any], event: str, at_us: int) -> Message:
    order_id = row["order_id"]
    body = {"event_id": f"{order_id}-{event}", "event": event, "at_us": at_us, **row}
    return Message("trade.order", json.dumps(body).encode(), key=order_id, tag=event, ordering_key=order_id)


@pytest.fixture(scope="module")
def urls(postgres: PostgresServer) -> Iterator[dict[str, str]]:
    names = {name: f"verified_{name}_{os.getpid()}" for name in TABLES}
    yield {name: postgres.create_database(own) for name, own in names.items()}
    for own in names.values():
        postgres.drop_database(own)


@pytest.fixture
def day(urls: dict[str, str], tmp_path: Path) -> Day:
    found = Day(urls, tmp_path / "log")
    for database, statements in TABLES.items():
        found.run(database, "drop schema if exists txmsg cascade; drop table if exists orders, stock, deductions")
        found.run(database, statements)
    found.trade("A", 2, 3_000, created=1, paid=2, shipped=3)
    found.trade("B", 9, 13_500, created=4, paid=5, refunded=6)
    found.trade("C", 1, 1_500, created=7)
    found.run("stock", "insert into stock values ('books-01-1', 8, 6)")
    found.run(
        "stock", "insert into deductions values ('A', 'books-01-1', 2, 'deducted'), ('B', 'books-01-1', 9, 'short')"
    )
    return found


def wrong(verdict: Verdict) -> dict[str, int]:
    """Return the counts of defects."""
    names = (
        "in_doubt",
        "missing",
        "duplicated",
        "phantom",
        "differing",
        "out_of_order",
        "stock_oversold",
        "stock_wrong",
    )
    found = {name: getattr(verdict, name) for name in names}
    assert verdict.clean == (not any(found.values()) and verdict.database == verdict.log)
    return {name: count for name, count in found.items() if count}


def test_a_consistent_day_is_clean_and_both_sums_agree(day: Day) -> None:
    verdict = day.verdict()
    assert verdict.clean, verdict.findings
    sums = Sums(trades=7, orders=3, paid=2, shipped=1, refunded=1, turnover_cents=3_000)
    assert (verdict.database, verdict.log) == (sums, sums)
    assert (verdict.stock_short, verdict.findings) == (1, [])


def test_a_trade_missing_from_the_log_is_found(day: Day) -> None:
    del day.messages[1]
    verdict = day.verdict()
    assert wrong(verdict) == {"missing": 1}
    assert verdict.log.turnover_cents == 0
    assert verdict.findings == ["log: order A paid is not there"]


def test_a_duplicate_trade_in_the_log_is_found_and_summed_twice(day: Day) -> None:
    day.messages.append(day.messages[1])
    verdict = day.verdict()
    assert wrong(verdict) == {"duplicated": 1}
    assert verdict.log.turnover_cents == 6_000


def test_a_missing_and_a_duplicate_trade_do_not_cancel_out(day: Day) -> None:
    day.messages[1] = day.messages[0]
    assert wrong(day.verdict()) == {"missing": 1, "duplicated": 1}


def test_a_trade_without_an_order_is_found(day: Day) -> None:
    day.run("trades", "update orders set shipped_at_us = null where order_id = 'A'")
    assert wrong(day.verdict()) == {"phantom": 1}


def test_a_message_of_an_unknown_order_is_found(day: Day) -> None:
    day.run("trades", "delete from orders where order_id = 'C'")
    assert wrong(day.verdict()) == {"phantom": 1}


@pytest.mark.parametrize("body", [b"\xff", b"[]", b"{}", b'{"order_id": "A", "event": "lost", "amount_cents": 1}'])
def test_a_message_without_a_trade_is_found(day: Day, body: bytes) -> None:
    day.messages.append(Message("trade.order", body, key="A"))
    assert wrong(day.verdict()) == {"phantom": 1}


def test_a_difference_of_one_cent_in_a_sum_is_found(day: Day) -> None:
    day.run("trades", "update orders set amount_cents = amount_cents + 1 where order_id = 'A'")
    verdict = day.verdict()
    assert wrong(verdict) == {"differing": 3}
    assert (verdict.database.turnover_cents, verdict.log.turnover_cents) == (3_001, 3_000)


@pytest.mark.parametrize("part", ["buyer = 'bert'", "province = 'tibet'", "quantity = 3", "paid_at_us = 1"])
def test_a_difference_in_any_field_of_a_message_is_found(day: Day, part: str) -> None:
    day.run("trades", f"update orders set {part} where order_id = 'A'")
    found = wrong(day.verdict())
    assert found.pop("differing") > 0
    assert not found


def test_a_message_without_its_ordering_key_is_found(day: Day) -> None:
    first = day.messages[0]
    day.messages[0] = Message(first.topic, first.body, key=first.key, tag=first.tag)
    assert wrong(day.verdict()) == {"differing": 1}


def test_a_payment_before_its_order_is_found(day: Day) -> None:
    day.messages[0], day.messages[1] = day.messages[1], day.messages[0]
    assert wrong(day.verdict()) == {"out_of_order": 1}


def test_an_order_in_two_queues_is_found(day: Day) -> None:
    day.queue_of = lambda message: int(message.tag == "shipped")
    assert wrong(day.verdict()) == {"out_of_order": 1}


def test_a_remaining_half_message_is_found(day: Day) -> None:
    day.run("notify", "insert into txmsg.half_message select gen_random_uuid(), 0")
    assert wrong(day.verdict()) == {"in_doubt": 1}


def test_a_paid_order_unknown_to_stock_is_found(day: Day) -> None:
    day.run("stock", "delete from deductions where order_id = 'B'")
    assert wrong(day.verdict()) == {"missing": 1}


def test_a_deduction_without_a_payment_is_found(day: Day) -> None:
    day.run("stock", "insert into deductions values ('C', 'books-01-1', 1, 'deducted')")
    day.run("stock", "update stock set available = 5")
    assert wrong(day.verdict()) == {"phantom": 1}


def test_overselling_is_counted_by_the_piece(day: Day) -> None:
    day.run("stock", "update deductions set outcome = 'deducted'; update stock set available = 0")
    assert wrong(day.verdict()) == {"stock_oversold": 3, "stock_wrong": 1}


def test_selling_an_item_without_stock_is_found(day: Day) -> None:
    day.run("stock", "delete from stock; delete from deductions where outcome = 'short'")
    assert wrong(day.verdict()) == {"stock_oversold": 2, "stock_wrong": 1, "missing": 1}


def test_pieces_missing_from_stock_are_found(day: Day) -> None:
    day.run("stock", "update stock set available = 5")
    assert wrong(day.verdict()) == {"stock_wrong": 1}


def test_an_order_wrongly_marked_short_is_found(day: Day) -> None:
    day.run("stock", "update stock set initial = 20, available = 18")
    assert wrong(day.verdict()) == {"stock_wrong": 1}
