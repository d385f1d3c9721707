"""A service of the chain: `python -m tests.chaos.service ORDERS`. Its handler consumes, writes and sends.

The first one is also who fills carts: by plain sends, some of which fail. What matters begins with its rows.
"""

from __future__ import annotations

import asyncio
import queue
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Any
from unittest.mock import patch

from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from tests.chaos import business
from tests.chaos.chain import IS_ASYNC, TOPIC_OF, body_of, next_topic
from tests.chaos.client import READY, Orders, obey_parent, orders
from tests.chaos.history import VISIBILITY_TIMEOUT_S
from tests.chaos.journal import Journal
from tests.chaos.plant import planted
from tests.chaos.senders import DISTURBED
from txmsg import FenceCheckListener, ReceivedMessage, Retry, Transaction, Txmsg

CONCURRENCY = 4
WORK_S = 0.03
"""Average seconds of a handler: so that some are killed within their transaction."""
LINGER_S = 0.01
"""The same after the half messages, and after the commit."""
AT_LEISURE = Retry(delays_s=[0.5, 1, 2, 4], jitter=0.2)
_RESTART_S = 0.5


def engine_of(told: Orders) -> Engine | AsyncEngine:
    if told.step in IS_ASYNC:
        return business.async_engine_of(told.business_url)
    return create_engine(told.business_url, pool_pre_ping=True)


def application(told: Orders, journal: Journal, engine: Engine | AsyncEngine) -> Txmsg:
    step, brokers = told.step, [list(shard) for shard in told.brokers]
    rng = random.Random(f"{told.seed} {told.name}")
    for shard in brokers:
        rng.shuffle(shard)
    app = Txmsg(brokers, group=step, database=engine, visibility_timeout_s=VISIBILITY_TIMEOUT_S, close_timeout_s=10)
    insert = text(f"insert into {step}_done values (:order_id, :amount, :at, :attempt)")

    def row_of(order_id: str, amount: int, tx: Transaction) -> dict[str, object]:
        return {"order_id": order_id, "amount": amount, "at": time.time(), "attempt": str(tx.transaction_id)}

    @contextmanager
    def noted(message: ReceivedMessage) -> Iterator[None]:
        journal.write("chain", f"chain_{step}_attempts", str(message.id))
        yield

    def linger(*_: object) -> None:
        time.sleep(rng.expovariate(1 / LINGER_S))

    hooks = app._producer_of("the chain").hooks
    hooks.after_half = hooks.before_end = linger
    app.middleware(noted)
    subscribe = app.subscribe(TOPIC_OF[step], concurrency=CONCURRENCY, retry=AT_LEISURE)
    if step in IS_ASYNC:

        @subscribe
        async def act_async(order_id: str, amount: int, session: AsyncSession, tx: Transaction) -> None:
            await session.execute(insert, row_of(order_id, amount, tx))
            tx.send(next_topic(step), body_of(step, order_id, amount, tx.transaction_id), key=order_id)
            await asyncio.sleep(rng.expovariate(1 / WORK_S))

    else:

        @subscribe
        def act(order_id: str, amount: int, session: Session, tx: Transaction) -> None:
            session.execute(insert, row_of(order_id, amount, tx))
            tx.send(next_topic(step), body_of(step, order_id, amount, tx.transaction_id), key=order_id)
            time.sleep(rng.expovariate(1 / WORK_S))

    return app


def start(app: Txmsg, stack: ExitStack) -> None:
    """Retry until the database answers."""
    while True:
        try:
            stack.enter_context(app)
        except (SQLAlchemyError, OSError):
            time.sleep(_RESTART_S)
        else:
            return


def fill_carts(told: Orders, app: Txmsg, told_lines: queue.Queue[None]) -> None:
    """Place orders until told to stop."""
    rng, numbers = random.Random(f"{told.seed} {told.name} carts"), count(1)
    while True:
        try:
            told_lines.get(timeout=rng.uniform(0, 2 / told.rate_per_s))
        except queue.Empty:
            cart = body_of("cart", f"{told.name}.{next(numbers)}", rng.randint(1, 10_000))
            try:
                app.send(TOPIC_OF[told.step], cart, key=cart["order_id"])
            except DISTURBED:
                continue  # no orders
        else:
            return


@contextmanager
def checks_noted(journal: Journal, step: str) -> Iterator[None]:
    """Log each check-back by a broker to the journal."""

    def check(self: FenceCheckListener, message: ReceivedMessage) -> Any:
        journal.write("chain", f"chain_{step}_checked", str(message.transaction_id))
        return original(self, message)

    original = FenceCheckListener.check
    with patch.object(FenceCheckListener, "check", check):
        yield


def main() -> None:
    told = orders()
    journal = Journal(told.journal_path)
    lines: queue.Queue[None] = queue.Queue()
    obey_parent(lambda: lines.put(None))
    print(READY, flush=True)
    with ExitStack() as stack:
        stack.enter_context(planted(told.plant))
        stack.enter_context(checks_noted(journal, told.step))
        app = application(told, journal, engine_of(told))
        start(app, stack)
        if told.step == next(iter(TOPIC_OF)):
            fill_carts(told, app, lines)
        else:
            lines.get()
        journal.write("quiet")
        lines.get()  # attached, so that check-backs are answered and pending messages handled, until it is told to end


if __name__ == "__main__":
    main()
