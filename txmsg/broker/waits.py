"""Restarts waits for times of the database's clock after that clock was set back.

Membership notices the step; the statements are in store/waits.py. Knows nothing of memory: `on_renewed` is called for
that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from txmsg.broker.alerts.alerting import AGAIN_S_MAX
from txmsg.broker.config import BrokerConfig
from txmsg.broker.periodic import repeat
from txmsg.broker.store import waits as store
from txmsg.broker.store.connect import Pool, session
from txmsg.broker.store.topic_settings import SETTLED_S
from txmsg.runtime.logs import EventLog

_log = EventLog(__name__)

_AGAIN_S: Final = 10.0
"""Seconds between the two runs: transactions that had begun before the step may commit after the first one."""


class Waits:
    """The waits in the tables. `run` restarts them after each `clock_set`."""

    def __init__(self, pool: Pool, config: BrokerConfig, *, on_renewed: Callable[[], None]) -> None:
        self._pool = pool
        self._config = config
        self._on_renewed = on_renewed
        self._soon = asyncio.Event()
        self._left = 0
        """The number of runs left."""

    def clock_set(self, step_s: float) -> None:
        """Restart waits if the database's clock was set back: step_s < 0. A step forward makes no wait longer."""
        if step_s < 0:
            self._left = 2
            self._soon.set()

    async def renew_once(self) -> None:
        """Restart all waits that began at a time that is still to come. Raises BrokerUnavailable."""
        async with session(self._pool) as conn:
            checks = await store.renew_checks(conn, self._config.check_policy().interval_s)
            retries = await store.renew_retries(conn)
            delayed = await store.renew_delays(conn)
            await store.renew_alerts(conn, AGAIN_S_MAX)
            await store.renew_topics(conn, SETTLED_S)
        if checks or retries or delayed:
            _log.warning(
                "database.waits_renewed",
                "after the clock of the database was set back, %(halves)d half messages, %(retries)d retries and "
                "%(delayed)d delayed messages wait again from now on",
                halves=checks,
                delayed=delayed,
                retries=retries,
            )
        self._on_renewed()

    async def run(self) -> None:
        """Restart waits whenever the clock was set back, until cancelled."""

        async def step() -> None:
            if self._left:
                await self.renew_once()
                self._left -= 1

        await repeat("renewing waits", step, _AGAIN_S, soon=self._soon)
