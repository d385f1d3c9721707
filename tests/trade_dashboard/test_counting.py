"""The figures that messages add, and messages that are set aside."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from examples.trade_dashboard.counting import Counted, count
from examples.trade_dashboard.figures import Sums, Waits

_AT_US = 1_793_980_800_000_000
_SECOND = datetime(2026, 11, 6, 16, 0, tzinfo=UTC)


def body(event: str, cents: object = 100, *, at_us: object = _AT_US, **more: object) -> bytes:
    """Return a message body; values that are None are left out."""
    said = {"event": event, "amount_cents": cents, "at_us": at_us} | {
        "seller": "mobile-07",
        "province": "guangdong",
        "category": "mobile",
        **more,
    }
    return json.dumps({name: value for name, value in said.items() if value is not None}).encode()


def counted(*bodies: bytes) -> Counted:
    """Return messages of queue 3, as Spark passes them."""
    columns = {
        "queue": pa.array([3] * len(bodies), pa.int32()),
        "offset": range(len(bodies)),
        "value": pa.array(bodies, pa.binary()),
        "stored_at": pa.array([_AT_US] * len(bodies), pa.timestamp("us", "UTC")),
    }
    return count(pa.table(columns))


def test_waits_start_at_the_event_and_are_averaged_over_counted_messages() -> None:
    found = counted(body("created", at_us=_AT_US - 10_000), body("paid", at_us=_AT_US - 30_000), b"none")
    planned_at, started_at, read_at = (_SECOND + timedelta(milliseconds=ms) for ms in (100, 107, 150))
    waits = found.waits(planned_at=planned_at, started_at=started_at, read_at=read_at)
    assert waits == Waits(committed_ms=20, planned_ms=100, started_ms=7, read_ms=43)
    assert counted(b"none").waits(planned_at=planned_at, started_at=started_at, read_at=read_at) == Waits()


def test_turnover_is_payments_minus_refunds_for_every_key() -> None:
    food = {"seller": "food-1", "category": "food"}
    found = counted(
        body("created", 250),
        body("paid", 250),
        body("created", 40, **food),
        body("refunded", 30, at_us=_AT_US + 1_000_000),
        body("paid", 40, province="tibet", at_us=_AT_US + 999, **food),
        body("shipped", 40),
    )
    deltas = found.deltas(7, _SECOND)
    assert (deltas.orders, deltas.paid, deltas.shipped, deltas.refunded, deltas.turnover_cents) == (2, 2, 1, 1, 260)
    assert deltas.messages == 6
    assert deltas.seconds == Sums([_SECOND, _SECOND.replace(second=1)], [2, 0], [2, 0], [290, -30])
    assert deltas.provinces == Sums(["guangdong", "tibet"], [2, 0], [1, 1], [220, 40])
    assert deltas.categories == Sums(["mobile", "food"], [1, 1], [1, 1], [220, 40])
    assert deltas.sellers == Sums(["mobile-07", "food-1"], [1, 1], [1, 1], [220, 40])
    assert deltas.commits == {_AT_US // 1000: 5, _AT_US // 1000 + 1000: 1}
    assert not deltas.bad
    assert found.spans == {3: (0, 6)}


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (b"\xff", "no JSON: "),
        (b"", "no JSON: "),
        (body("paid", note="x" * 8192), "longer than 8192 bytes"),
        (b"[" * 8_000, "no JSON: "),
        (b"[]", "JSON of a list, not of an object"),
        (body("stolen"), "event 'stolen' is none of created, paid, shipped, refunded"),
        (json.dumps({"event": ["paid"]}).encode(), "event ['paid'] is none of"),
        (body("paid", None), "amount_cents is missing"),
        (body("paid", -1), "amount_cents -1 is no whole number from 0 to"),
        (body("paid", 1.5), "amount_cents 1.5 is no whole number"),
        (body("paid", "100"), "amount_cents '100' is no whole number"),
        (body("paid", True), "amount_cents True is no whole number"),
        (body("paid", 10**13 + 1), "amount_cents 10000000000001 is no whole number"),
        (body("paid", at_us=_AT_US + 60_000_001), "at_us 1793980860000001 is no time in microseconds until a minute"),
        (body("paid", at_us=0), "at_us 0 is no time"),
        (body("paid", seller="a\0b"), r"seller 'a\x00b' is no code"),
        (body("paid", province="\ud800"), r"province '\ud800' is no code"),
        (body("paid", category=""), "category '' is no code"),
        (body("paid", category=None), "category is missing"),
    ],
)
def test_invalid_message_is_set_aside_and_the_others_are_counted(wrong: bytes, reason: str) -> None:
    deltas = counted(body("paid", 1), wrong, body("paid", 2)).deltas(0, _SECOND)
    assert (deltas.paid, deltas.turnover_cents, deltas.messages, deltas.bad_messages) == (2, 3, 3, 1)
    [bad] = deltas.bad
    assert (bad.queue, bad.offset, bad.body) == (3, 1, wrong[:8192])
    assert bad.reason.startswith(reason), bad.reason
    assert bad.reason.isprintable(), "PostgreSQL could not store it"


def test_stored_bad_messages_are_bounded_and_all_are_counted() -> None:
    many = counted(*[b"x"] * 10_001)
    assert (many.bad_messages, len(many.bad)) == (10_001, 10_000)
