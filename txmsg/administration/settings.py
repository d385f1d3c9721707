"""Settings of a Notify database at run time: what brokers use, changes and their history, and what clients watch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Final

from txmsg.administration.ask import Nothing
from txmsg.wire.method import Method
from txmsg.wire.values import Natural, NumberRange


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedSetting:
    """What a broker uses. value: in words; passwords are hidden. source: where it comes from, in words."""

    name: str
    value: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingChange:
    """A change at run time. name: SCOPE.NAME, and @TARGET for one group or broker. value: None if it was unset.

    version: rises over all settings.
    """

    name: str
    value: str | None = None
    version: int
    changed_at: datetime
    changed_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsInUse:
    """What one broker uses, and what is set at run time for all, by name.

    broker: its id. version: of the newest change of all; 0: there is none.
    """

    broker: str
    used: Sequence[UsedSetting]
    stored: Sequence[SettingChange]
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeSetting:
    """Sets, unsets (without `value`) or rolls back (`as_of` a version, to the value it had then) one setting.

    version: refused unless the setting is at this version; 0: not set before. changed_by: kept without authentication
    only; with it, the user of the call is.
    """

    name: str
    value: str | None = None
    as_of: Natural | None = None
    version: Natural | None = None
    changed_by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingHistoryQuery:
    """Of which setting; "": of all, the newest 100 changes."""

    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingHistory:
    """Changes, the newest first."""

    changes: Sequence[SettingChange]


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchSettings:
    """Waits until the newest change is another one than this version, at most wait_ms; prefixes: of names.

    version: that was told last; 0: none.
    """

    prefixes: Sequence[str] = ()
    version: Natural = 0
    wait_ms: Annotated[int, NumberRange(0, 300_000)] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedSettings:
    """All that are set and whose names begin so, not only those that changed; version: of the newest change of all."""

    version: int
    settings: Sequence[SettingChange]


class SettingsService:
    """The service Settings."""

    show: Final = Method("Settings/Show", Nothing, SettingsInUse)
    change: Final = Method("Settings/Change", ChangeSetting, SettingChange)
    """Not idempotent without a version."""
    history: Final = Method("Settings/History", SettingHistoryQuery, SettingHistory)
    watch: Final = Method("Settings/Watch", WatchSettings, WatchedSettings)
