"""Upkeep of the audit log: refusals are written together, and old entries are removed.

Changes are written where they are made (store/audit.py). Anyone who reaches the port can be refused, so refused logins,
and refused calls that would have changed something, are counted in memory and written once a minute: an attacker adds
few entries.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple

from txmsg.broker.config import BrokerConfig
from txmsg.broker.periodic import repeat
from txmsg.broker.store.audit import AuditLog
from txmsg.wire.access.rules import Action
from txmsg.wire.caller import Caller

REFUSALS_MAX: Final = 50
"""Entries that a broker writes per minute of refused logins, and as many of refused calls: those beyond them share
one."""
OTHERS: Final = "others"
_LOGIN: Final = "login.refused"
_CALL: Final = "call.denied"
_WHAT_LENGTH_MAX: Final = 200
_WRITE_S: Final = 60.0
_FORGET_S: Final = 3600.0


class _Refusal(NamedTuple):
    """Refusals that share an entry."""

    action: str
    who: str
    host: str
    target: str
    reason: str = ""


class AuditUpkeep:
    """The upkeep of the audit log by one broker: refusals and retention."""

    def __init__(self, config: BrokerConfig, log: AuditLog, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._log = log
        self._monotonic = monotonic
        self._refused: dict[str, Counter[_Refusal]] = {_LOGIN: Counter(), _CALL: Counter()}
        self._forget_at = monotonic()

    def apply_settings(self, config: BrokerConfig) -> None:
        """Apply these settings from the next run on."""
        self._config = config

    def refused(self, host: str, reason: str) -> None:
        """Count a refused login. host: its address without the port."""
        self._count(_Refusal(_LOGIN, "", host, host, reason), _Refusal(_LOGIN, "", OTHERS, OTHERS))

    def denied(self, user: str, host: str, what: str) -> None:
        """Count a call that the user has no right for, if it would have changed something."""
        if what.startswith(Action.ADMINISTER):
            refusal = _Refusal(_CALL, user, host, what[:_WHAT_LENGTH_MAX])
            self._count(refusal, _Refusal(_CALL, OTHERS, OTHERS, Action.ADMINISTER))

    def _count(self, refusal: _Refusal, others: _Refusal) -> None:
        known = self._refused[refusal.action]
        known[refusal if refusal in known or len(known) < REFUSALS_MAX - 1 else others] += 1

    async def write_once(self) -> None:
        """Write the refusals since the last time.

        Raises BrokerUnavailable; refusals that were not written then stay counted.
        """
        for known in self._refused.values():
            while known:
                # Removed before it is written, and added again on a failure: refusals may be counted while the
                # statement runs.
                refusal, times = known.popitem()
                after = {"times": times} | ({"reason": refusal.reason} if refusal.reason else {})
                caller = Caller(refusal.who, refusal.host)
                try:
                    await self._log.record(refusal.action, refusal.target, after=after, caller=caller)
                except BaseException:
                    known[refusal] += times
                    raise

    async def run_once(self) -> None:
        """Write refusals; once an hour, remove old entries."""
        await self.write_once()
        if self._monotonic() >= self._forget_at:
            while await self._log.forget_entries(self._config.audit_retention_s):
                pass
            self._forget_at = self._monotonic() + _FORGET_S

    async def run(self) -> None:
        """Repeat `run_once` until cancelled."""
        await repeat("upkeep of the audit log", self.run_once, _WRITE_S)
