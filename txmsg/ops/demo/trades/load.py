"""The load: which trades are made when, in a day shaped like the day. Pure: the same seed gives the same day.

A quiet while before midnight, the rush at midnight, then waves, pressed into as many seconds as there are. An order is
created; most are paid soon after, most of these are shipped, some refunded. Knows no service and no clock.
"""

from __future__ import annotations

import heapq
import math
import random
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, NamedTuple

from txmsg.ops.demo.examples.trade_dashboard.orders import Event, Order
from txmsg.ops.demo.trades.market import ITEMS, PROVINCE_WEIGHTS

MIDNIGHT: Final = 0.15
"""The time at which the rush begins, as a share of the load's time."""

_QUIET: Final = 0.5
_RUSH: Final = 0.6
_RUSH_SHARE: Final = 0.12
_WAVE: Final = 0.15
_WAVES: Final = 3
_POINTS: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The size of the load. Raises ValueError for an impossible load."""

    rate: float
    """Trades per second, over all the time: an order that is created, paid, shipped or refunded is a trade each."""
    seconds: float
    seed: int = 11

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1_000_000 or not 0 < self.seconds <= 7 * 86_400:
            raise ValueError(
                f"{self.rate:g} trades per second for {self.seconds:g} seconds are no load: give a rate above 0 (at "
                "most 1,000,000) and seconds above 0 (at most a week)"
            )
        if self.trades < 1:
            raise ValueError(f"{self.rate:g} trades per second for {self.seconds:g} seconds are not even one trade")

    @property
    def trades(self) -> int:
        """Return the number of trades."""
        return round(self.rate * self.seconds)


class TradeStep(NamedTuple):
    """One trade. at_s: when, in seconds from the begin of the load; of one order always later than the one before."""

    at_s: float
    event: Event
    order: Order


# ---- the shape of the day


def _intensity(share: float) -> float:
    """Return the activity at this share of the day, compared with other moments."""
    if share < MIDNIGHT:
        return _QUIET
    rush = _RUSH * math.exp(-(share - MIDNIGHT) / _RUSH_SHARE)
    return 1 + rush + _WAVE * math.sin(2 * math.pi * _WAVES * (share - MIDNIGHT) / (1 - MIDNIGHT))


def _done_by() -> list[float]:
    """Return the share of all trades that is done at each of _POINTS + 1 moments of the day."""
    between = (_intensity((point + 0.5) / _POINTS) for point in range(_POINTS))
    sums = list(accumulate(between, initial=0.0))
    return [part / sums[-1] for part in sums]


_DONE_BY: Final = _done_by()


def _moment(done: float) -> float:
    """At which share of the day this share of all trades is done."""
    point = bisect_right(_DONE_BY, done) - 1
    before, after = _DONE_BY[point], _DONE_BY[point + 1]
    return (point + (done - before) / (after - before)) / _POINTS


# ---- the life of orders


_PAID: Final = 0.85
_SHIPPED: Final = 0.7
_REFUNDED_UNSHIPPED: Final = 0.04
_REFUNDED_SHIPPED: Final = 0.04
_WAITS_S: Final[Mapping[Event, float]] = {"paid": 1.5, "shipped": 3.0, "refunded": 3.0}
"""Seconds that an order waits for each, on average. A day has seconds here, so hours are seconds."""
_QUANTITIES: Final = (1, 1, 1, 1, 1, 2, 2, 3)
_BUYERS: Final = 1_000_000
_ORDERS_PER_TRADE: Final = 0.4
"""About how many of the trades create an order."""


def steps(load: Load) -> Iterator[TradeStep]:
    """The trades in order of time, exactly `load.trades` of them.

    Their moments follow the shape of the day. A moment belongs to the order that has waited longest for its next trade,
    if one is due, and else creates an order; so memory holds the orders that wait, and no more.
    """
    people = _People(load.seed)
    waiting: list[tuple[float, int, Event, Order]] = []
    created = 0
    for number in range(load.trades):
        at_s = _moment((number + 0.5) / load.trades) * load.seconds
        if waiting and waiting[0][0] <= at_s:
            _, place, event, order = heapq.heappop(waiting)
        else:
            created += 1
            place, event, order = created, "created", people.order(f"{load.seed}-{created:07}")
        yield TradeStep(at_s, event, order)
        following = people.next_event(event)
        if following is not None:
            heapq.heappush(waiting, (at_s + people.wait_s(following), place, following, order))


class _People:
    """Draws orders and what becomes of them. Every decision is taken from one sequence of random numbers."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._provinces = list(PROVINCE_WEIGHTS)
        self._province_weights = list(accumulate(PROVINCE_WEIGHTS.values()))
        self._item_weights = list(accumulate(item.weight for item in ITEMS))

    def order(self, order_id: str) -> Order:
        rng = self._rng
        [province] = rng.choices(self._provinces, cum_weights=self._province_weights)
        [item] = rng.choices(ITEMS, cum_weights=self._item_weights)
        quantity = rng.choice(_QUANTITIES)
        return Order(
            order_id=order_id,
            buyer=f"buyer-{rng.randrange(_BUYERS)}",
            seller=item.seller,
            province=province,
            category=item.category,
            item=item.code,
            quantity=quantity,
            amount_cents=item.price_cents * quantity,
        )

    def next_event(self, event: Event) -> Event | None:
        drawn = self._rng.random()
        if event == "created":
            return "paid" if drawn < _PAID else None
        if event == "paid":
            if drawn < _SHIPPED:
                return "shipped"
            return "refunded" if drawn < _SHIPPED + _REFUNDED_UNSHIPPED else None
        if event == "shipped":
            return "refunded" if drawn < _REFUNDED_SHIPPED else None
        return None

    def wait_s(self, event: Event) -> float:
        return _WAITS_S[event] * self._rng.uniform(0.3, 1.7)


# ---- what is in stock


def initial_stock(load: Load) -> dict[str, int]:
    """Return the stock of each item: of some more than the load will sell, of others too few."""
    rng = random.Random(load.seed)
    sold = load.trades * _ORDERS_PER_TRADE * _PAID * sum(_QUANTITIES) / len(_QUANTITIES)
    weight = sum(item.weight for item in ITEMS)
    return {item.code: max(1, round(sold * item.weight / weight * rng.uniform(0.5, 2.0))) for item in ITEMS}
