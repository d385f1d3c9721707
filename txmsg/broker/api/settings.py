"""The service Settings: settings at run time. Decides nothing."""

from __future__ import annotations

from txmsg.access.permissions import DESCRIBE_CLUSTER
from txmsg.broker.settings import RunTimeSettings
from txmsg.broker.store.settings import SettingRow
from txmsg.message import us_of_datetime
from txmsg.wire.caller import require, signature
from txmsg.wire.v1 import settings_pb2 as pb

_WAIT_S_MAX = 300.0
_PREFIXES_MAX = 100
_OF_CLIENTS = ("client.", "app.")
"""Scopes that every client may watch."""


class SettingsApi:
    """The service Settings."""

    def __init__(self, settings: RunTimeSettings) -> None:
        self._settings = settings

    async def show(self, _: pb.ShowSettingsRequest) -> pb.ShowSettingsReply:
        used = self._settings.used()
        return pb.ShowSettingsReply(
            broker=self._settings.config.broker_id,
            used=[pb.UsedSetting(name=name, value=value, source=source) for name, (value, source) in used.items()],
            stored=[_stored(row) for row in self._settings.stored()],
            version=self._settings.version,
        )

    async def change(self, request: pb.ChangeSettingRequest) -> pb.ChangeSettingReply:
        expected = request.version if request.HasField("version") else None
        changed_by = signature(request.changed_by)
        if request.HasField("as_of"):
            row = await self._settings.roll_back(request.name, request.as_of, expected=expected, changed_by=changed_by)
        else:
            value = request.value if request.HasField("value") else None
            row = await self._settings.change(request.name, value, expected=expected, changed_by=changed_by)
        return pb.ChangeSettingReply(setting=_stored(row))

    async def history(self, request: pb.SettingHistoryRequest) -> pb.SettingHistoryReply:
        return pb.SettingHistoryReply(changes=[_stored(row) for row in await self._settings.history(request.name)])

    async def watch(self, request: pb.WatchSettingsRequest) -> pb.WatchSettingsReply:
        if not all(prefix.startswith(_OF_CLIENTS) for prefix in request.prefixes):
            require(DESCRIBE_CLUSTER, "")
        await self._settings.changed_from(request.version, min(request.wait_ms / 1000, _WAIT_S_MAX))
        rows = self._settings.stored(request.prefixes[:_PREFIXES_MAX])
        return pb.WatchSettingsReply(version=self._settings.version, settings=[_stored(row) for row in rows])


def _stored(row: SettingRow) -> pb.StoredSetting:
    return pb.StoredSetting(
        name=row.name,
        value=row.value,
        version=row.version,
        changed_at_us=us_of_datetime(row.changed_at),
        changed_by=row.changed_by,
    )
