"""A synthetic day of trade: figures as Spark adds them. Run as a program, it continues until its input ends.

    python -m tests.page.day URL [BATCHES_PER_SECOND]

adds what was traded since the batch before, and prints the batch's number after each.
"""

from __future__ import annotations

import math
import random
import select
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import psycopg

from examples.trade_dashboard import figures
from examples.trade_dashboard.figures import Deltas, Sums
from examples.trade_dashboard.names import CATEGORIES, PROVINCES

_SECONDS: Final = 600
_RATE: Final = 900
_PAID: Final = 0.93
_FIRST_PROVINCES: Final = ("guangdong", "zhejiang", "jiangsu", "shandong", "shanghai", "beijing", "sichuan", "henan")
_FIRST_CATEGORIES: Final = ("mobile", "clothing", "appliances", "beauty", "food", "computers", "shoes")


def add_day(connection: psycopg.Connection[Any], until: datetime) -> None:
    """Add the trades of the ten minutes before `until` as one batch: a spike, and waves."""
    end_s = until.timestamp()
    _add(connection, 0, _traded(end_s - _SECONDS, end_s), end_s)


def _add(connection: psycopg.Connection[Any], number: int, traded: Mapping[int, int], end_s: float) -> None:
    deltas = _deltas(number, traded, end_s)
    with connection.transaction():
        figures.add(connection, deltas)


def _traded(begin_s: float, end_s: float) -> dict[int, int]:
    """Return the orders of each second of this time; the first and the last second may be partial."""
    found = {}
    for second in range(int(begin_s), int(end_s) + 1):
        begin, end = max(begin_s, second) - second, min(end_s, second + 1) - second
        orders = _orders_in(second)
        if count := round(orders * end) - round(orders * begin):
            found[second] = count
    return found


def _orders_in(second: int) -> float:
    """Return the rate at a moment of the day: waves of three minutes, and a spike every ten."""
    wave = 0.8 + 0.2 * math.sin(second / 180 * 2 * math.pi)
    spike = 1.9 * math.exp(-(((second % _SECONDS - 140) / 35) ** 2))
    return _RATE * (wave + spike) * random.Random(second).uniform(0.96, 1.04)


def _deltas(number: int, traded: Mapping[int, int], end_s: float) -> Deltas:
    orders = list(traded.values())
    paid = [round(order * _PAID) for order in orders]
    cents = [each * random.Random(second).randint(17_000, 19_000) for second, each in zip(traded, paid, strict=True)]
    sums = (sum(orders), sum(paid), sum(cents))
    now_ms = int(time.time() * 1000)
    spread = random.Random(number)
    return Deltas(
        batch_id=number,
        messages=round(sums[0] * 2.6),
        started_at=datetime.fromtimestamp(end_s, UTC) - timedelta(milliseconds=spread.randint(200, 280)),
        orders=sums[0],
        paid=sums[1],
        shipped=sums[1] * 2 // 3,
        refunded=sums[1] // 60,
        turnover_cents=sums[2],
        seconds=Sums([datetime.fromtimestamp(each, UTC) for each in traded], orders, paid, cents),
        provinces=_distributed(_ranked(PROVINCES, _FIRST_PROVINCES), sums, spread),
        categories=_distributed(_ranked(CATEGORIES, _FIRST_CATEGORIES), sums, spread),
        sellers=_distributed([f"{category}-{n:02}" for n in (1, 2, 3) for category in _FIRST_CATEGORIES], sums, spread),
        commits={int(end_s * 1000): 1} | {now_ms - spread.randint(250, 700): 1 for _ in range(100)},
    )


def _ranked(known: Mapping[str, object], first: Sequence[str]) -> list[str]:
    return [*first, *(each for each in known if each not in first)]


def _distributed(keys: list[str], sums: Sequence[int], spread: random.Random) -> Sums[str]:
    """Distribute the amount over the keys, the first ones get most; nothing is lost."""
    weights = [spread.uniform(0.9, 1.1) / (rank + 3) for rank in range(len(keys))]
    shares = [weight / sum(weights) for weight in weights]
    columns = []
    for amount in sums:
        parts = [int(amount * share) for share in shares]
        parts[0] += amount - sum(parts)
        columns.append(parts)
    return Sums(keys, *columns)


def main() -> None:
    url, *given = sys.argv[1:]
    every_s = 1 / float(given[0]) if given else 0.25
    with psycopg.connect(url, autocommit=True, connect_timeout=10) as connection:
        (number,) = connection.execute("select coalesce(max(batch_id), 0) from figures_batch").fetchone() or (0,)
        (through_at,) = connection.execute("select through_at from figures_total").fetchone() or (None,)
        begin_s = time.time() if through_at is None else through_at.timestamp()
        while not select.select([sys.stdin], [], [], every_s)[0]:
            number, end_s = number + 1, time.time()
            _add(connection, number, _traded(begin_s, end_s), end_s)
            begin_s = end_s
            print(number, flush=True)


if __name__ == "__main__":
    main()
