"""The check policies of producer groups: the broker's settings, overridden by those of the group.

Keeps the check loop's policies in step with the table, within seconds. Decides nothing about halves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from txmsg.administration.groups import CheckChange, CheckSettings
from txmsg.broker.config import BrokerConfig
from txmsg.broker.periodic import repeat
from txmsg.broker.store.check_policies import CheckPolicyRow
from txmsg.broker.store.check_policies import CheckPolicyStore as Store
from txmsg.checker.policy import CheckPolicies, CheckPolicy
from txmsg.errors import MisuseError, UnknownGroup
from txmsg.runtime.logs import EventLog
from txmsg.wire.access.rules import Names

_log = EventLog(__name__)

_LOOK_S = 5.0
_DAYS_MAX = 366
_SECONDS = ("first_check_s", "check_interval_s", "no_client_park_s")
_OWN = ("first_check_s", "check_interval_s", "checks_max", "no_client_park_s")


class GroupChecks:
    """The check policies of all producer groups at one broker.

    admin_store: for operators' requests. use: called with the policies whenever they may have changed.
    """

    def __init__(
        self, config: BrokerConfig, store: Store, admin_store: Store, use: Callable[[CheckPolicies], object]
    ) -> None:
        self._config = config
        self._store = store
        self._admin_store = admin_store
        self._use = use
        self._soon = asyncio.Event()
        self._refused: set[CheckPolicyRow] = set()

    def apply_settings(self, config: BrokerConfig) -> None:
        """Apply the broker's changed settings."""
        self._config = config
        self._refused.clear()
        self.look_soon()

    def look_soon(self) -> None:
        """Read the policies at once: an operator has changed one."""
        self._soon.set()

    async def run(self) -> None:
        """Repeat `refresh_once` until cancelled."""
        await repeat("reading check policies", self.refresh_once, _LOOK_S, soon=self._soon)

    async def refresh_once(self) -> None:
        """Read the policies and apply them. Those that conflict with the broker's settings are logged."""
        by_group: dict[str, CheckPolicy] = {}
        for row in await self._store.own():
            try:
                by_group[row.group_name] = self.policy_of(row)
            except ValueError as exc:
                # Logged once for each state of the row, not at each poll.
                if row not in self._refused:
                    _log.error(
                        "settings.check_policy_refused",
                        "producer group %(group)s is checked as others are: %(error)s",
                        group=row.group_name,
                        error=exc,
                    )
                self._refused.add(row)
        self._use(CheckPolicies(default=self._config.check_policy(), by_group=by_group))

    def policy_of(self, row: CheckPolicyRow) -> CheckPolicy:
        """Return the policy of a group at this broker. ValueError if its settings conflict with the broker's."""
        default = self._config.check_policy()
        interval_s = default.interval_s if row.check_interval_s is None else row.check_interval_s
        return CheckPolicy(
            first_check_s=default.first_check_s if row.first_check_s is None else row.first_check_s,
            interval_s=interval_s,
            checks_max=default.checks_max if row.checks_max is None else row.checks_max,
            no_client_park_s=default.no_client_park_s if row.no_client_park_s is None else row.no_client_park_s,
            # Below the interval, so that an answer is never still awaited when the next check of the same transaction
            # is due.
            answer_timeout_s=min(self._config.check_timeout_s, interval_s * 0.9),
        )

    def _settings_of(self, row: CheckPolicyRow) -> CheckSettings:
        try:
            policy = self.policy_of(row)
        except ValueError:  # it conflicts with the settings of this broker, which uses its own
            policy = self.policy_of(CheckPolicyRow(group_name=row.group_name))
        return CheckSettings(
            group=row.group_name,
            first_check_s=policy.first_check_s,
            check_interval_s=policy.interval_s,
            checks_max=policy.checks_max,
            no_client_park_s=policy.no_client_park_s,
            own=[name for name in _OWN if getattr(row, name) is not None],
        )

    async def list(self, limit: int, *, after: str, contains: str, names: Names) -> Sequence[CheckSettings]:
        """Return the settings of the first producer groups by name, within `names`.

        after: only names behind this one. contains: only names that contain this, ignoring case.
        """
        rows = await self._admin_store.list(limit, after=after, contains=contains, names=names)
        return [self._settings_of(row) for row in rows]

    async def show(self, group: str) -> CheckSettings:
        """Return the settings of a producer group. Raises UnknownGroup."""
        return self._settings_of(await self._row(group))

    async def _row(self, group: str) -> CheckPolicyRow:
        row = await self._admin_store.find_policy(group)
        if row is None:
            raise UnknownGroup(
                f"producer group {group!r} is unknown: it exists from its first half message on; `txmsg group list` "
                "shows existing ones"
            )
        return row

    async def alter(self, change: CheckChange) -> CheckSettings:
        """Change the given settings, all or nothing. Raises UnknownGroup, and MisuseError for invalid values."""
        group, seconds_max = change.group, _DAYS_MAX * 86_400
        row = await self._row(group)
        if change.default_checks:
            row = CheckPolicyRow(group_name=group)
        row = replace(row, **{name: value for name in _OWN if (value := getattr(change, name)) is not None})
        for name in _SECONDS:
            value = getattr(row, name)
            if value is not None and not 0 <= value <= seconds_max:
                raise MisuseError(f"{name}={value} of producer group {group!r}: give 0 to {seconds_max}")
        try:
            self.policy_of(row)
        except ValueError as exc:
            raise MisuseError(f"producer group {group!r} cannot be checked with these settings: {exc}") from exc
        await self._admin_store.set(row)
        return self._settings_of(row)
