"""Settings of a Notify database at run time, by the service Settings of any of its brokers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from txmsg.administration.ask import Ask, moment, new_request
from txmsg.wire.v1 import settings_pb2 as pb
from txmsg.wire.v1 import settings_rpc


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedSetting:
    """What a broker uses. source: where it comes from, in words."""

    name: str
    value: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingChange:
    """A change at run time. value: None if it was unset. version: rises over all settings."""

    name: str
    value: str | None
    version: int
    changed_at: datetime | None
    changed_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsInUse:
    """What one broker uses, and what is set at run time for all."""

    broker: str
    used: Sequence[UsedSetting]
    stored: Sequence[SettingChange]
    version: int


class SettingsAdministration:
    """What `txmsg config` does at run time. Calls block. Raises the errors of errors.py."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def show(self) -> SettingsInUse:
        """What the broker that answers uses, and all that is set."""
        reply = self._ask(settings_rpc.Settings.show, pb.ShowSettingsRequest())
        return SettingsInUse(
            broker=reply.broker,
            used=[UsedSetting(name=each.name, value=each.value, source=each.source) for each in reply.used],
            stored=[_change(each) for each in reply.stored],
            version=reply.version,
        )

    def change(
        self,
        name: str,
        *,
        value: str | None = None,
        as_of: int | None = None,
        version: int | None = None,
        changed_by: str,
    ) -> SettingChange:
        """Sets, unsets (without `value`) or rolls back (`as_of` a version) one setting.

        version: refused unless the setting is at this version; 0: not set before.
        """
        request = new_request(
            pb.ChangeSettingRequest, name=name, value=value, as_of=as_of, version=version, changed_by=changed_by
        )
        return _change(self._ask(settings_rpc.Settings.change, request).setting)

    def history(self, name: str) -> Sequence[SettingChange]:
        """The changes of a setting, the newest first; without a name the newest 100 of all."""
        reply = self._ask(settings_rpc.Settings.history, pb.SettingHistoryRequest(name=name))
        return [_change(each) for each in reply.changes]


def _change(setting: pb.StoredSetting) -> SettingChange:
    return SettingChange(
        name=setting.name,
        value=setting.value if setting.HasField("value") else None,
        version=setting.version,
        changed_at=moment(setting.changed_at_us),
        changed_by=setting.changed_by,
    )
