"""Upkeep of the audit log: refused logins are written, together, and old entries are removed.

Changes are written where they are made (store/audit.py). Everybody who reaches the port can be refused, so refusals are
counted in memory, by address and reason, and written once a minute: an attacker adds few entries.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from txmsg.broker.config import BrokerConfig
from txmsg.broker.periodic import repeat
from txmsg.broker.store.audit import AuditLog
from txmsg.wire.caller import Caller

REFUSALS_MAX: Final = 50
"""Entries of refused logins a broker writes per minute: addresses beyond them share one."""
OTHERS: Final = "other addresses"
_WRITE_S: Final = 60.0
_FORGET_S: Final = 3600.0


class AuditUpkeep:
    """What one broker does for the audit log beside writing changes."""

    def __init__(self, config: BrokerConfig, log: AuditLog, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._log = log
        self._monotonic = monotonic
        self._refused: Counter[tuple[str, str]] = Counter()
        self._forget_at = monotonic()

    def use(self, config: BrokerConfig) -> None:
        """From the next look on these settings hold."""
        self._config = config

    def refused(self, host: str, reason: str) -> None:
        """A login was refused. host: its address without the port, which is another one each time."""
        known = (host, reason) in self._refused or len(self._refused) < REFUSALS_MAX - 1
        self._refused[(host, reason) if known else (OTHERS, "")] += 1

    async def write_once(self) -> None:
        """Writes what was refused since the last time. Raises BrokerUnavailable; what was not written then waits."""
        while self._refused:
            (host, reason), logins = self._refused.popitem()
            try:
                after = {"logins": logins, "reason": reason} if reason else {"logins": logins}
                await self._log.record("login.refused", host, after=after, caller=Caller("", host))
            except BaseException:
                self._refused[host, reason] += logins
                raise

    async def run_once(self) -> None:
        """Writes refusals; once an hour, removes old entries."""
        await self.write_once()
        if self._monotonic() >= self._forget_at:
            while await self._log.forget(self._config.audit_retention_s):
                pass
            self._forget_at = self._monotonic() + _FORGET_S

    async def run(self) -> None:
        """Repeats `run_once` until cancelled."""
        await repeat("upkeep of the audit log", self.run_once, _WRITE_S)
