"""The time at which a link reports results to its broker: soon after the first, again after a failure, all at the end.

Not with a poll, which would confirm them only when it ends. Belongs to one loop.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from txmsg.client.receiving.awaited import AwaitedQueues
from txmsg.client.receiving.broker_failures import BrokerFailures
from txmsg.client.receiving.reports import Reports
from txmsg.wire.v1.txmsg_pb2 import Receipt

FLUSH_DELAY_S = 0.005
FAILURES_MAX = 3
"""Failures in a row after which a stop does not wait for the broker to hear the last report: it has probably gone."""


class Settling:
    """Sends reports, one at a time, until `flush`."""

    def __init__(self, reports: Reports, awaited: AwaitedQueues, trouble: BrokerFailures) -> None:
        self._reports = reports
        self._awaited = awaited
        self._trouble = trouble
        self._timer: asyncio.TimerHandle | None = None
        self._sending: asyncio.Task[None] | None = None
        self._is_over = False
        awaited.watch(self._note_free)
        trouble.watch(self.soon)  # rather than when the long pause is over

    def later(self, delay_s: float = FLUSH_DELAY_S) -> None:
        """Send what is due after this many seconds, unless that is planned already."""
        if self._timer is None and self._sending is None and not self._is_over:
            self._timer = asyncio.get_running_loop().call_later(delay_s, self.soon)

    def soon(self) -> None:
        """Send what is due at once, or after the report that is being sent."""
        if self._is_over:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._sending is None and self._reports.is_any_due:
            self._sending = asyncio.create_task(self._send_reports())
            self._sending.add_done_callback(self._sent)

    async def _send_reports(self) -> None:
        await self.settle()

    def _sent(self, _: asyncio.Task[None]) -> None:
        self._sending = None
        if self._reports.is_any_due:
            self.later(self._trouble.pause_s_max if self._trouble.failures else FLUSH_DELAY_S)

    def _note_free(self, queue_id: int) -> None:
        if self._awaited.includes(queue_id):
            self.later()

    async def settle(self, held: Sequence[Receipt] = ()) -> bool:
        """Send what is due now, with the receipts still held. Returns False after a failure: it is sent again."""
        is_heard = False
        try:
            is_heard = await self._reports.send_reports(held)
        finally:
            if not is_heard and self._reports.is_any_due:
                self.later(self._trouble.pause_s_max)
        return is_heard

    async def flush(self, timeout_s: float) -> None:
        """Settle everything that waits, before the end. Messages left after the time are redelivered."""
        try:
            async with asyncio.timeout(timeout_s):
                while self._sending is not None or self._is_worth_sending:
                    if self._sending is not None:
                        await asyncio.wait([self._sending])
                    elif not await self.settle():
                        await asyncio.sleep(random.uniform(0.05, 0.2))
        except TimeoutError:
            if self._reports.unsent_count:
                self._trouble.note_unsent(self._reports.unsent_count)
        finally:
            self._is_over = True
            self._awaited.unwatch(self._note_free)
            if self._timer is not None:
                self._timer.cancel()
            if self._sending is not None:
                self._sending.cancel()

    @property
    def _is_worth_sending(self) -> bool:
        reports = self._reports
        return reports.is_any_due and (reports.unsent_count > 0 or self._trouble.failures < FAILURES_MAX)
