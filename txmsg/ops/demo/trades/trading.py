"""Carries out a load on the trade service: each trade at its moment, whatever becomes of the processes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError

from txmsg import BrokerUnavailable, TransactionRefused
from txmsg.ops.demo.examples.trade_dashboard import service
from txmsg.ops.demo.examples.trade_dashboard.orders import EVENTS, Event, Order
from txmsg.ops.demo.trades.load import Load, TradeStep, steps
from txmsg.runtime.logs import EventLog

CALLERS: Final = 3
"""Transactions of each kind of trade under way at a time."""
TOGETHER_MAX: Final = 50
RETRY_S: Final = 0.2

_log = EventLog(__name__)

_TRADES: Final[Mapping[Event, Callable[[Sequence[Order], int], Awaitable[None]]]] = {
    "created": service.create,
    "paid": service.pay,
    "shipped": service.ship,
    "refunded": service.refund,
}


class Trading:
    """A load, begun at `began_at` (in seconds since 1970), perhaps by a process that was killed.

    Trades in the trade database are not made again; trades that the process had not finished are repeated
    as other transactions. So the day ends the same, however often its service dies.

    For each kind of trade there are a few callers, each with one transaction under way. What comes meanwhile waits, and
    is traded together next: alone while little goes on, by the dozen at midnight.
    """

    def __init__(self, load: Load, began_at: float) -> None:
        self._load = load
        self._began_at = began_at
        self._queues: dict[Event, asyncio.Queue[_Due]] = {event: asyncio.Queue(TOGETHER_MAX) for event in EVENTS}
        self._under_way: dict[str, _Due] = {}
        self.made = 0
        """Trades that are in the database."""
        self.late_s = 0.0
        """Delay in seconds of the last trade: more than a little when the service cannot keep up."""

    async def run(self) -> None:
        """Returns when all trades are made. Raises what a trade raises that cannot be made."""
        made = await _made_before()
        async with asyncio.TaskGroup() as tasks:
            callers = [tasks.create_task(self._call(queue)) for queue in self._queues.values() for _ in range(CALLERS)]
            for step in steps(self._load):
                if (step.order.order_id, step.event) in made:
                    self.made += 1
                else:
                    await self._await_moment(step)
                    due = _Due(step.event, step.order, self._under_way.get(step.order.order_id), asyncio.Event())
                    self._under_way[step.order.order_id] = due
                    await self._queues[step.event].put(due)
            for queue in self._queues.values():
                await queue.join()
            for caller in callers:
                caller.cancel()

    async def _await_moment(self, step: TradeStep) -> None:
        wait_s = self._began_at + step.at_s - time.time()
        self.late_s = max(0.0, -wait_s)
        if wait_s > 0:
            await asyncio.sleep(wait_s)

    async def _call(self, queue: asyncio.Queue[_Due]) -> None:
        while True:
            together = [await queue.get()]
            while len(together) < TOGETHER_MAX and not queue.empty():
                together.append(queue.get_nowait())
            for due in together:  # trades of one order are made one after the other, also when the service lags behind
                if due.before is not None:
                    await due.before.made.wait()
            await _make(together[0].event, [due.order for due in together])
            for due in together:
                self._end_trade(due)
                queue.task_done()

    def _end_trade(self, due: _Due) -> None:
        self.made += 1
        due.made.set()
        due.before = None
        if self._under_way[due.order.order_id] is due:
            del self._under_way[due.order.order_id]


@dataclass(slots=True, eq=False)
class _Due:
    """A trade whose moment has come, and the one of the same order before it, if that is not made yet."""

    event: Event
    order: Order
    before: _Due | None
    made: asyncio.Event


async def _make(event: Event, orders: Sequence[Order]) -> None:
    while True:
        try:
            await _TRADES[event](orders, time.time_ns() // 1000)
            return
        except (IntegrityError, service.TradeRefused):
            # The commit of a process that was killed may have been under way when this one looked.
            if len(orders) == 1 and not await _is_made(event, orders[0]):
                raise
            if len(orders) > 1:
                for order in orders:
                    await _make(event, [order])
            return
        except (BrokerUnavailable, TransactionRefused) as exc:  # nothing was changed
            _log.warning(
                "demo.orders_repeated",
                "%(orders)d orders are not %(state)s yet, trying again: %(error)s",
                orders=len(orders),
                state=event,
                error=exc,
            )
            await asyncio.sleep(RETRY_S)


_MOMENTS: Final = [service.orders.c[f"{event}_at_us"] for event in EVENTS]


async def _made_before() -> set[tuple[str, Event]]:
    """The trades that are in the database."""
    made: set[tuple[str, Event]] = set()
    async with service.engine.connect() as connection:
        found = await connection.stream(select(service.orders.c.order_id, *_MOMENTS))
        async for order_id, *moments in found:
            made.update((order_id, event) for event, at_us in zip(EVENTS, moments, strict=True) if at_us is not None)
    return made


async def _is_made(event: Event, order: Order) -> bool:
    query = select(service.orders.c[f"{event}_at_us"]).where(service.orders.c.order_id == order.order_id)
    async with service.engine.connect() as connection:
        return (await connection.execute(query)).scalar() is not None
