"""Computes the figures that messages of the topic `trade.order` add. Pure.

A message that cannot be counted is set aside with its reason; it never stops the job, nor spoils its neighbours.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

import pyarrow as pa

from txmsg.errors import shown

from .figures import BAD_KEPT_MAX, BadMessage, Deltas, Sums, Waits
from .offsets import Span

EVENTS: Final = ("created", "paid", "shipped", "refunded")
BODY_SIZE_BYTES_MAX: Final = 8 * 1024
"""Longer messages are not read further: a trade has a few hundred bytes, and a batch must fit into memory."""
AMOUNT_CENTS_MAX: Final = 10**13
"""A hundred billion yuan: more is an error, and could overflow a sum."""
_AHEAD_US_MAX: Final = 60 * 1_000_000
"""Maximum time of an event after it was stored: clocks differ. One from tomorrow would make all others late."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)
_NO_WAITS: Final = Waits()
_CODE: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")


class BadTrade(ValueError):
    """Raised for a message that is not a trade; the text is the reason."""


class Trade(NamedTuple):
    """The parts of a message that the figures need."""

    event: str
    seller: str
    province: str
    category: str
    amount_cents: int
    at_us: int


def trade_of(body: bytes, stored_at_us: int) -> Trade:
    """Parse a message stored at this time. Raises BadTrade."""
    if len(body) > BODY_SIZE_BYTES_MAX:
        raise BadTrade(f"longer than {BODY_SIZE_BYTES_MAX} bytes, as no trade is")
    try:
        said = json.loads(body)
    except (ValueError, RecursionError) as exc:
        raise BadTrade(f"no JSON: {shown(str(exc))}") from exc
    if type(said) is not dict:
        raise BadTrade(f"JSON of a {type(said).__name__}, not of an object")
    event, amount_cents, at_us = said.get("event"), said.get("amount_cents"), said.get("at_us")
    if event not in EVENTS:
        raise _bad(said, "event", f"none of {', '.join(EVENTS)}")
    if type(amount_cents) is not int or not 0 <= amount_cents <= AMOUNT_CENTS_MAX:
        raise _bad(said, "amount_cents", f"no whole number from 0 to {AMOUNT_CENTS_MAX}")
    if type(at_us) is not int or not 0 < at_us <= stored_at_us + _AHEAD_US_MAX:
        raise _bad(said, "at_us", f"no time in microseconds until a minute after {stored_at_us}, when it was stored")
    return Trade(event, _code(said, "seller"), _code(said, "province"), _code(said, "category"), amount_cents, at_us)


def _code(said: dict[str, Any], name: str) -> str:
    code = said.get(name)
    if type(code) is not str or not _CODE.fullmatch(code):
        raise _bad(said, name, "no code of 1 to 64 letters, digits, . _ -")
    return code


def _bad(said: dict[str, Any], name: str, why: str) -> BadTrade:
    return BadTrade(f"{name} {shown(said[name])} is {why}" if name in said else f"{name} is missing")


Three = list[int]
"""Orders, paid, turnover in cents."""


def _by() -> defaultdict[Any, Three]:
    return defaultdict(_nothing)


def _nothing() -> Three:
    return [0, 0, 0]


@dataclass(slots=True)
class Counted:
    """Sums of messages, added one by one."""

    messages: int = 0
    events: Counter[str] = field(default_factory=Counter)
    turnover_cents: int = 0
    seconds: defaultdict[int, Three] = field(default_factory=_by)
    provinces: defaultdict[str, Three] = field(default_factory=_by)
    categories: defaultdict[str, Three] = field(default_factory=_by)
    sellers: defaultdict[str, Three] = field(default_factory=_by)
    commits: Counter[int] = field(default_factory=Counter)
    """Events by the millisecond."""
    at_us: int = 0
    """Sum of the times of events."""
    stored_at_us: int = 0
    """Sum of the times at which their messages were stored."""
    bad: list[BadMessage] = field(default_factory=list)
    bad_messages: int = 0
    spans: dict[int, Span] = field(default_factory=dict)
    """By queue, from the first message to after the last."""

    def message(self, queue: int, offset: int, body: bytes, stored_at_us: int) -> None:
        """Count one message, or set it aside."""
        self.messages += 1
        begin, end = self.spans.get(queue, (offset, offset))
        self.spans[queue] = (min(begin, offset), max(end, offset + 1))
        try:
            trade = trade_of(body, stored_at_us)
        except BadTrade as exc:
            self.bad_messages += 1
            if len(self.bad) < BAD_KEPT_MAX:
                self.bad.append(BadMessage(queue, offset, str(exc), body[:BODY_SIZE_BYTES_MAX]))
            return
        event, cents = trade.event, trade.amount_cents
        orders, paid = int(event == "created"), int(event == "paid")
        turnover_cents = cents if paid else -cents if event == "refunded" else 0
        self.events[event] += 1
        self.turnover_cents += turnover_cents
        self.commits[trade.at_us // 1_000] += 1
        self.at_us += trade.at_us
        self.stored_at_us += stored_at_us
        for sums in (
            self.seconds[trade.at_us // 1_000_000],
            self.provinces[trade.province],
            self.categories[trade.category],
            self.sellers[trade.seller],
        ):
            sums[0] += orders
            sums[1] += paid
            sums[2] += turnover_cents

    def waits(self, *, planned_at: datetime, started_at: datetime, read_at: datetime) -> Waits:
        """Return the average waits of these events, given when their batch was planned, started and read."""
        events = self.events.total()
        if not events:
            return Waits()
        stored_at = _EPOCH + timedelta(microseconds=self.stored_at_us // events)
        return Waits(
            committed_ms=(self.stored_at_us - self.at_us) // events // 1_000,
            planned_ms=(planned_at - stored_at) // _MS,
            started_ms=(started_at - planned_at) // _MS,
            read_ms=(read_at - started_at) // _MS,
        )

    def deltas(self, batch_id: int, started_at: datetime, waits: Waits = _NO_WAITS) -> Deltas:
        """Return the sums as they are added to the figures."""
        seconds = {datetime.fromtimestamp(second, UTC): sums for second, sums in self.seconds.items()}
        return Deltas(
            batch_id=batch_id,
            messages=self.messages,
            started_at=started_at,
            waits=waits,
            orders=self.events["created"],
            paid=self.events["paid"],
            shipped=self.events["shipped"],
            refunded=self.events["refunded"],
            turnover_cents=self.turnover_cents,
            seconds=_sums(seconds),
            provinces=_sums(self.provinces),
            categories=_sums(self.categories),
            sellers=_sums(self.sellers),
            commits=self.commits,
            bad=self.bad,
            bad_messages=self.bad_messages,
        )


def count(messages: pa.Table) -> Counted:
    """Count all messages of a table with the columns queue, offset, value and stored_at."""
    found = Counted()
    for batch in messages.to_batches():
        columns = [batch[name].to_pylist() for name in ("queue", "offset", "value")]
        for message in zip(*columns, batch["stored_at"].cast(pa.int64()).to_pylist(), strict=True):
            found.message(*message)
    assert found.messages == sum(end - begin for begin, end in found.spans.values()), "messages of a queue are left out"
    return found


def _sums(groups: dict[Any, Three]) -> Sums[Any]:
    columns = zip(*groups.values(), strict=True) if groups else ((), (), ())
    return Sums(list(groups), *(list(each) for each in columns))
