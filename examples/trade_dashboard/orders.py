"""An order, its trades, and the message of each. Knows no database."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Final, Literal, NamedTuple, get_args

from txmsg import Message

TOPIC: Final = "trade.order"

Event = Literal["created", "paid", "shipped", "refunded"]
EVENTS: Final[tuple[Event, ...]] = get_args(Event)


class Order(NamedTuple):
    """An order with its buyer and seller. Seller, province, category: codes of names.py."""

    order_id: str
    buyer: str
    seller: str
    province: str
    category: str
    item: str
    quantity: int
    amount_cents: int
    """For all of the quantity."""


def telling(event: Event) -> Callable[[Sequence[Order], int], list[Message]]:
    """Return a function that creates the messages of this trade: one for each order, with the time of the trade.

    The order's id is the ordering key: who reads the messages of an order sees it created before it is paid.
    """

    def messages(orders: Sequence[Order], at_us: int) -> list[Message]:
        return [_message(order, event, at_us) for order in orders]

    return messages


def _message(order: Order, event: Event, at_us: int) -> Message:
    content = {"event_id": f"{order.order_id}-{event}", "event": event, "at_us": at_us, **order._asdict()}
    body = json.dumps(content, separators=(",", ":")).encode()
    return Message(TOPIC, body, key=order.order_id, tag=event, ordering_key=order.order_id)
