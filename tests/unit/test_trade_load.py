"""The load of the trade dashboard depends only on the seed, and has the shape of the day."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import islice, pairwise

import pytest

from examples.trade_dashboard.names import CATEGORIES, PROVINCES
from examples.trade_dashboard.orders import EVENTS
from txmsg.ops.demo.trades.load import MIDNIGHT, Load, initial_stock, steps
from txmsg.ops.demo.trades.market import ITEMS

DAY = Load(rate=100, seconds=60, seed=3)
AFTER: dict[str, set[str | None]] = {
    "created": {None},
    "paid": {"created"},
    "shipped": {"paid"},
    "refunded": {"paid", "shipped"},
}


def test_the_seed_determines_the_day() -> None:
    assert list(steps(DAY)) == list(steps(DAY))
    assert initial_stock(DAY) == initial_stock(DAY)
    other = Load(rate=100, seconds=60, seed=4)
    assert [step.order for step in islice(steps(other), 20)] != [step.order for step in islice(steps(DAY), 20)]


def test_a_faster_day_has_the_trades_of_its_rate_within_its_time() -> None:
    for rate, seconds in ((1.0, 1.0), (0.5, 60.0), (1_000.0, 3.3)):
        found = list(steps(Load(rate=rate, seconds=seconds)))
        assert len(found) == round(rate * seconds)
        assert all(0 < step.at_s < seconds for step in found)
        assert all(before.at_s < after.at_s for before, after in pairwise(found))


def test_load_is_highest_at_midnight_and_lowest_before() -> None:
    by_tenth = Counter(int(step.at_s / DAY.seconds * 20) for step in steps(DAY))
    midnight = int(MIDNIGHT * 20)
    assert max(by_tenth, key=by_tenth.__getitem__) == midnight
    assert min(by_tenth, key=by_tenth.__getitem__) < midnight
    assert by_tenth[midnight] > 1.4 * DAY.trades / 20
    assert by_tenth[0] < 0.7 * DAY.trades / 20


def test_every_order_takes_its_steps_once_and_in_order() -> None:
    before: dict[str, str | None] = defaultdict(lambda: None)
    seen: Counter[str] = Counter()
    for step in steps(DAY):
        assert before[step.order.order_id] in AFTER[step.event], step
        before[step.order.order_id] = step.event
        seen[step.event] += 1
    assert seen.keys() == set(EVENTS)
    assert seen["created"] > seen["paid"] > seen["shipped"] > seen["refunded"] > 0


def test_orders_name_existing_items_at_their_price() -> None:
    items = {item.code: item for item in ITEMS}
    for step in islice(steps(DAY), 500):
        order, item = step.order, items[step.order.item]
        assert (order.seller, order.category) == (item.seller, item.category)
        assert order.amount_cents == item.price_cents * order.quantity > 0
        assert order.province in PROVINCES
        assert order.category in CATEGORIES


def test_some_items_sell_out_and_most_do_not() -> None:
    stock = initial_stock(DAY)
    wanted: Counter[str] = Counter()
    for step in steps(DAY):
        if step.event == "paid":
            wanted[step.order.item] += step.order.quantity
    short = [item for item in wanted if wanted[item] > stock[item]]
    assert 0 < len(short) < len(stock) / 2


@pytest.mark.parametrize(
    ("rate", "seconds"), [(0.0, 1.0), (-1.0, 1.0), (float("nan"), 1.0), (1.0, 0.0), (0.1, 1.0), (1e9, 1.0)]
)
def test_an_invalid_load_is_refused(rate: float, seconds: float) -> None:
    with pytest.raises(ValueError, match="trades per second"):
        Load(rate=rate, seconds=seconds)
