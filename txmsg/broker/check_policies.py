"""Which check policy each producer group has: the broker's settings, and what a person has set for the group.

Keeps the check loop's in step with the table, within seconds. Decides nothing about halves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from txmsg.broker.config import BrokerConfig
from txmsg.broker.periodic import repeat
from txmsg.broker.store.check_policies import CheckPolicies as Store
from txmsg.broker.store.check_policies import CheckPolicyRow
from txmsg.checker.policy import CheckPolicies, CheckPolicy
from txmsg.errors import MisuseError, UnknownGroup

__all__ = ["CheckChange", "GroupChecks"]

_log = logging.getLogger(__name__)

_LOOK_S = 5.0
_DAYS_MAX = 366
_CHECKS_MAX = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckChange:
    """Settings to be changed; None: as it is. default_checks: what is not named is the broker's again."""

    default_checks: bool = False
    first_check_s: float | None = None
    check_interval_s: float | None = None
    checks_max: int | None = None
    no_client_park_s: float | None = None


class GroupChecks:
    """The check policies of all producer groups at one broker.

    people: for what a person asks. use: takes the policies whenever they may have changed.
    """

    def __init__(
        self, config: BrokerConfig, store: Store, people: Store, use: Callable[[CheckPolicies], object]
    ) -> None:
        self._config = config
        self._store = store
        self._people = people
        self._use = use
        self._soon = asyncio.Event()
        self._refused: set[CheckPolicyRow] = set()

    def look_soon(self) -> None:
        """A person has changed one."""
        self._soon.set()

    async def run(self) -> None:
        """Looks again and again, until it is cancelled."""
        await repeat(self.refresh_once, _LOOK_S, asyncio.Event(), self._soon)

    async def refresh_once(self) -> None:
        """Reads the policies and hands them on. One that does not fit the broker's settings is logged and left out."""
        by_group: dict[str, CheckPolicy] = {}
        for row in await self._store.own():
            try:
                by_group[row.group_name] = self.policy_of(row)
            except ValueError as exc:
                if row not in self._refused:
                    _log.error("producer group %s is checked as others are: %s", row.group_name, exc)
                self._refused.add(row)
        self._use(CheckPolicies(default=self._config.check_policy(), by_group=by_group))

    def policy_of(self, row: CheckPolicyRow) -> CheckPolicy:
        """What holds for a group at this broker. ValueError when its settings do not fit the broker's."""
        default = self._config.check_policy()
        interval_s = default.interval_s if row.check_interval_s is None else row.check_interval_s
        return CheckPolicy(
            first_check_s=default.first_check_s if row.first_check_s is None else row.first_check_s,
            interval_s=interval_s,
            checks_max=default.checks_max if row.checks_max is None else row.checks_max,
            no_client_park_s=default.no_client_park_s if row.no_client_park_s is None else row.no_client_park_s,
            answer_timeout_s=min(self._config.check_timeout_s, interval_s * 0.9),
        )

    async def list(self, limit: int) -> Sequence[CheckPolicyRow]:
        """What is set for the first producer groups by name."""
        return await self._people.list(limit)

    async def show(self, group: str) -> CheckPolicyRow:
        """What is set for a producer group. Raises UnknownGroup."""
        row = await self._people.find(group)
        if row is None:
            raise UnknownGroup(
                f"producer group {group!r} is unknown: it is known from its first half message on; `txmsg group list` "
                "shows those there are"
            )
        return row

    async def alter(self, group: str, change: CheckChange) -> CheckPolicyRow:
        """Changes what is named, all or nothing. Raises UnknownGroup, and MisuseError for what cannot be."""
        row = await self.show(group)
        if change.default_checks:
            row = CheckPolicyRow(group_name=group)
        names = ("first_check_s", "check_interval_s", "checks_max", "no_client_park_s")
        row = replace(row, **{name: value for name in names if (value := getattr(change, name)) is not None})
        for name in names:
            value = getattr(row, name)
            most = _CHECKS_MAX if name == "checks_max" else _DAYS_MAX * 86_400
            if value is not None and not 0 <= value <= most:
                raise MisuseError(f"{name}={value} of producer group {group!r}: give 0 to {most}")
        try:
            self.policy_of(row)
        except ValueError as exc:
            raise MisuseError(f"producer group {group!r} cannot be checked like this: {exc}") from exc
        await self._people.set(row)
        return row
