"""A service that pays orders and ends at a given step: a program for tests.

    python -m tests.integration.chain.service KIND URL BROKER STEP PLANT [LOG]

KIND: `def` or `async`. URL: of its database. STEP: one of STEPS; there it kills itself, or stops itself at "stopped".
PLANT: "none", or which write is in a transaction of its own, as a defect: the "inbox" row, or the "effects".
LOG: where orders are read from a log, and not from brokers.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from sqlalchemy import Engine, create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from tests.business import POOL_OF_ONE
from txmsg import ReceivedMessage, Transaction, Txmsg
from txmsg.client.flows.guard import SessionGuard
from txmsg.client.receiving import inbox, sending_handler

STEPS: Final = ("before", "inside", "fence", "half", "committed", "told")
"""Before the inbox row; after it and the effects; after the fence row; after the half messages; after the commit; after
the outcome, before the acknowledgement."""
PAY: Final = text("insert into paid values (:id, :amount)")
VISIBILITY_TIMEOUT_S: Final = 2


class EndsAtStep:
    """Ends the process at the given step."""

    def __init__(self, step: str) -> None:
        self._step = step

    def at(self, step: str) -> None:
        if self._step == "stopped" and step == "inside":
            self._step = "never"
            os.kill(os.getpid(), signal.SIGSTOP)
        elif self._step == step:
            os.kill(os.getpid(), signal.SIGKILL)

    @contextmanager
    def around(self, _: ReceivedMessage) -> Iterator[None]:
        self.at("before")
        yield
        self.at("told")

    def watch(self, app: Txmsg) -> None:
        """Install the step hooks, after the handler is subscribed and the application has its producer."""
        app.middleware(self.around)
        hooks = app._producer_of("the test").hooks
        hooks.before_half = lambda: self.at("fence")
        hooks.after_half = lambda _: self.at("half")
        hooks.before_end = lambda *_: self.at("committed")


def service(url: str, broker: str, ending: EndsAtStep, plant: str, log: str | None) -> Txmsg:
    engine = create_engine(url, **(POOL_OF_ONE if plant == "none" else {}))
    app = Txmsg(broker, log=log, group="payment", database=engine, visibility_timeout_s=VISIBILITY_TIMEOUT_S)
    if plant == "inbox":
        sending_handler.record = recorded_apart(engine)  # type: ignore[attr-defined]

    @app.subscribe("order.placed", source="log" if log else "brokers")
    def pay(order_id: int, session: Session, tx: Transaction) -> None:
        if plant == "effects":
            with engine.begin() as connection:
                connection.execute(PAY, {"id": order_id, "amount": 7})
        else:
            session.execute(PAY, {"id": order_id, "amount": 7})
        tx.send("order.paid", {"order_id": order_id}, key=order_id)
        tx.send("order.thanked", {"order_id": order_id}, key=order_id)
        ending.at("inside")

    return app


def recorded_apart(engine: Engine) -> Any:
    """Write the row of the inbox and commit it before anything else: a planted defect."""

    def record(session: Session, guard: SessionGuard, row: dict[str, object]) -> bool:
        with engine.begin() as connection:
            return inbox._write(connection, row)

    return record


def async_service(url: str, broker: str, ending: EndsAtStep, log: str | None) -> Txmsg:
    engine = create_async_engine(url, **POOL_OF_ONE)
    app = Txmsg(broker, log=log, group="payment", database=engine, visibility_timeout_s=VISIBILITY_TIMEOUT_S)

    @app.subscribe("order.placed", source="log" if log else "brokers")
    async def pay(order_id: int, session: AsyncSession, tx: Transaction) -> None:
        await session.execute(PAY, {"id": order_id, "amount": 7})
        tx.send("order.paid", {"order_id": order_id}, key=order_id)
        tx.send("order.thanked", {"order_id": order_id}, key=order_id)
        ending.at("inside")

    return app


def main(kind: str, url: str, broker: str, step: str, plant: str, log: str | None = None) -> None:  # noqa: PLR0917
    ending = EndsAtStep(step)
    app = service(url, broker, ending, plant, log) if kind == "def" else async_service(url, broker, ending, log)
    ending.watch(app)
    app.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
