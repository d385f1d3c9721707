"""The verdict on the chain, on rows written by hand: a correct one passes, and each defect is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from tests.chaos.chain import body_of, read_body, taken
from tests.chaos.chain_verdict import STEPS, SentOn, Written, figures, wrong
from tests.chaos.history import Loss
from txmsg.message.typed.text import json_of


@dataclass
class Rows:
    """Two completed orders."""

    done: dict[str, list[Written]] = field(
        default_factory=lambda: {
            step: [Written("1", 5, 100.0 + n, "a"), Written("2", 6, 101.0 + 2 * n, "a")] for n, step in enumerate(STEPS)
        }
    )
    sent: list[SentOn] = field(default_factory=lambda: [SentOn(step, id, "a") for step in STEPS for id in ("1", "2")])
    lost: set[SentOn] = field(default_factory=set)

    def drop(self, *steps: str, id: str = "1", lost: SentOn | None = None) -> None:
        """Remove an order from these steps. lost: messages lost with a database."""
        self.lost |= {lost} if lost else set()
        for step in steps:
            self.done[step] = [row for row in self.done[step] if row.order_id != id]
            self.sent.remove(SentOn(step, id, "a"))

    def wrong(self) -> list[str]:
        return sorted(wrong(self.done, self.sent, self.lost))


def test_completed_orders_have_no_violations() -> None:
    assert Rows().wrong() == []


WRONG: dict[str, tuple[Callable[[Rows], object], list[str]]] = {
    "paid twice": (
        lambda rows: rows.done["payment"].append(Written("1", 5, 103.0, "a")),
        ["order 1 was written 2 times by payment"],
    ),
    "sent on twice": (
        lambda rows: rows.sent.append(SentOn("order", "2", "a")),
        ["order 2 was sent on 2 times by order"],
    ),
    "never shipped": (lambda rows: rows.drop("shipping"), ["order 1 has no row of shipping"]),
    "never paid": (
        lambda rows: rows.drop("payment", "shipping"),
        ["order 1 has no row of payment", "order 1 has no row of shipping"],
    ),
    "paid without an order": (lambda rows: rows.drop("order"), ["order 1 has a row of payment and none of order"]),
    "shipped without a payment": (
        lambda rows: rows.drop("payment"),
        ["order 1 has a row of shipping and none of payment", "order 1 has no row of payment"],
    ),
    "another amount": (
        lambda rows: rows.done.update(shipping=[Written("1", 5, 102.0, "a"), Written("2", 7, 105.0, "a")]),
        ["order 2 is worth 6, and 7 in shipping"],
    ),
    "sent without a row": (
        lambda rows: rows.sent.append(SentOn("payment", "3", "b")),
        ["order 3 was sent on by payment in attempt b, which has no row of it"],
    ),
    "sent by the attempt that did not commit": (
        lambda rows: rows.sent.__setitem__(0, SentOn("order", "1", "b")),
        [
            "order 1 was not sent on by order in attempt a, which has a row of it",
            "order 1 was sent on by order in attempt b, which has no row of it",
        ],
    ),
    "a row, and nothing sent": (
        lambda rows: rows.sent.remove(SentOn("shipping", "1", "a")),
        ["order 1 was not sent on by shipping in attempt a, which has a row of it"],
    ),
    "lost behind where it stopped": (
        lambda rows: rows.drop("payment", "shipping", lost=SentOn("payment", "1", "a")),
        ["order 1 has no row of payment", "order 1 has no row of shipping"],
    ),
    "what another attempt sent is lost": (
        lambda rows: rows.drop("shipping", lost=SentOn("payment", "1", "b")),
        ["order 1 has no row of shipping"],
    ),
    "another one is lost": (
        lambda rows: rows.drop("shipping", lost=SentOn("payment", "2", "a")),
        ["order 1 has no row of shipping"],
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_each_violation_of_the_chain_is_named(what: str) -> None:
    change, texts = WRONG[what]
    rows = Rows()
    change(rows)
    assert rows.wrong() == texts


def test_orders_lost_with_a_database_are_excused_in_later_services() -> None:
    rows = Rows()
    rows.drop("payment", "shipping", lost=SentOn("order", "1", "a"))
    rows.sent.remove(SentOn("order", "1", "a"))
    assert rows.wrong() == []


def test_lost_messages_are_identified_by_their_bodies() -> None:
    bodies = [json_of(body_of("payment", "order.0.1", 5, "a")).decode(), "producer-0.0.1/0"]
    assert [read_body(each) for each in bodies] == [SentOn("payment", "order.0.1", "a"), None]
    loss = Loss("of the test", 1.0, is_restored=False, gone=frozenset(bodies))
    assert taken([loss]) == {SentOn("payment", "order.0.1", "a")}


def test_figures_report_order_latency_and_gaps_in_shipping() -> None:
    rows = Rows()
    counts = figures(rows.done, set())
    assert (counts["chain_order"], counts["chain_lost"]) == (2, 0)
    assert (counts["chain_ms_p50"], counts["chain_ms_p99"], counts["chain_gap_ms"]) == (4000, 4000, 3000)
    assert counts["chain_per_minute"] == 24
    rows.drop("shipping", id="2")
    assert figures(rows.done, {SentOn("payment", "2", "a"), SentOn("payment", "1", "a")})["chain_lost"] == 1
