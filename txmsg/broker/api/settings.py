"""The service Settings: limits what each client may watch, and names the author of a change."""

from __future__ import annotations

from txmsg.administration.ask import Nothing
from txmsg.administration.settings import (
    ChangeSetting,
    SettingChange,
    SettingHistory,
    SettingHistoryQuery,
    SettingsInUse,
    WatchedSettings,
    WatchSettings,
)
from txmsg.broker.settings import RunTimeSettings
from txmsg.wire.access.permissions import DESCRIBE_CLUSTER
from txmsg.wire.caller import require, signature

_PREFIXES_MAX = 100
_OF_CLIENTS = ("client.", "app.")
"""Scopes that every client may watch."""


class SettingsApi:
    """The service Settings."""

    def __init__(self, settings: RunTimeSettings) -> None:
        self._settings = settings

    async def show(self, _: Nothing) -> SettingsInUse:
        return SettingsInUse(
            broker=self._settings.config.broker_id,
            used=self._settings.used(),
            stored=self._settings.stored(),
            version=self._settings.version,
        )

    async def change(self, change: ChangeSetting) -> SettingChange:
        name, expected, changed_by = change.name, change.version, signature(change.changed_by)
        if change.as_of is not None:
            return await self._settings.roll_back(name, change.as_of, expected=expected, changed_by=changed_by)
        return await self._settings.change(name, change.value, expected=expected, changed_by=changed_by)

    async def history(self, query: SettingHistoryQuery) -> SettingHistory:
        return SettingHistory(changes=await self._settings.history(query.name))

    async def watch(self, request: WatchSettings) -> WatchedSettings:
        if not all(prefix.startswith(_OF_CLIENTS) for prefix in request.prefixes):
            # Settings of brokers may show paths and addresses, so they are for those who may see the cluster.
            require(DESCRIBE_CLUSTER, "")
        await self._settings.changed_from(request.version, request.wait_ms / 1000)
        settings = self._settings.stored(request.prefixes[:_PREFIXES_MAX])
        return WatchedSettings(version=self._settings.version, settings=settings)
