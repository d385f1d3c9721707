"""Lets what waits for a time of the database's clock wait anew when that clock was set back.

Membership notices it. The statements are in store/waits.py; what is in memory is told by `on_renewed`.
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
from txmsg.logs import EventLog

_log = EventLog(__name__)

_AGAIN_S: Final = 10.0
"""After so long once more: for transactions that had begun before the clock was set. They end within seconds."""


class Waits:
    """What waits in the tables. `run` renews it after each `clock_set`."""

    def __init__(self, pool: Pool, config: BrokerConfig, *, on_renewed: Callable[[], None]) -> None:
        self._pool = pool
        self._config = config
        self._on_renewed = on_renewed
        self._soon = asyncio.Event()
        self._left = 0
        """How often it is still to be renewed."""

    def clock_set(self, step_s: float) -> None:
        """The database's clock was set by so much. Only if it was set back does something wait for too long."""
        if step_s < 0:
            self._left = 2
            self._soon.set()

    async def renew_once(self) -> None:
        """Renews all waits that began in what is the future now. Raises BrokerUnavailable."""
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
        """Renews what waits whenever the clock was set back, until cancelled."""

        async def step() -> None:
            if self._left:
                await self.renew_once()
                self._left -= 1

        await repeat("renewing waits", step, _AGAIN_S, soon=self._soon)
