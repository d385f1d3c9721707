"""Goods with their sellers and prices, and the provinces of buyers. Always the same market; pure."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from txmsg.ops.demo.examples.trade_dashboard.names import CATEGORIES, PROVINCES


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """Something that is sold. weight: how often it is bought, compared with others."""

    code: str
    seller: str
    category: str
    price_cents: int
    weight: float


_BUYERS: Final = (
    *("guangdong", "zhejiang", "jiangsu", "shanghai", "shandong", "beijing", "henan", "sichuan", "hubei", "fujian"),
    *("hebei", "hunan", "anhui", "liaoning", "shaanxi", "jiangxi", "chongqing", "guangxi", "yunnan", "tianjin"),
    *("heilongjiang", "shanxi", "jilin", "guizhou", "inner_mongolia", "xinjiang", "gansu", "hainan", "ningxia"),
    *("qinghai", "tibet"),
)
"""Provinces, those with the most buyers first."""
PROVINCE_WEIGHTS: Final[Mapping[str, float]] = {code: 1 / (5 + place) for place, code in enumerate(_BUYERS)}

_CATEGORIES: Final[Mapping[str, tuple[float, int, int]]] = {
    "clothing": (20, 50, 800),
    "mobile": (14, 200, 8_000),
    "appliances": (12, 150, 6_000),
    "beauty": (11, 30, 1_200),
    "shoes": (9, 80, 1_500),
    "food": (8, 10, 300),
    "baby": (7, 20, 900),
    "computers": (6, 100, 9_000),
    "sports": (5, 40, 1_500),
    "furniture": (4, 100, 5_000),
    "books": (2, 15, 150),
    "jewellery": (2, 100, 20_000),
}
"""Weight of purchases, compared with others, and the prices in yuan, from the cheapest to the dearest."""
_SELLERS: Final = 12
"""Of each category."""
_ITEMS: Final = 5
"""Of each seller."""


def _items() -> Sequence[Item]:
    rng = random.Random("market")
    return [
        Item(
            code=f"{category}-{seller:02}-{number}",
            seller=f"{category}-{seller:02}",
            category=category,
            price_cents=round(cheapest * 100 * (dearest / cheapest) ** rng.random() / 100) * 100 - 1,
            weight=share / (1 + seller) / (1 + number),
        )
        for category, (share, cheapest, dearest) in _CATEGORIES.items()
        for seller in range(1, _SELLERS + 1)
        for number in range(1, _ITEMS + 1)
    ]


ITEMS: Final = _items()
"""All that is sold."""

assert PROVINCE_WEIGHTS.keys() == PROVINCES.keys()
assert _CATEGORIES.keys() == CATEGORIES.keys()
