"""Settings of a Notify database at run time: values in use, changes and their history, and watches of clients."""

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
    """A setting in use at a broker. value: in words; passwords are hidden. source: of the value, in words."""

    name: str
    value: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingChange:
    """A change at run time. name: SCOPE.NAME, and @TARGET for one group or broker. value: None if it was unset.

    version: ascending over all settings.
    """

    name: str
    value: str | None = None
    version: int
    changed_at: datetime
    changed_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsInUse:
    """The settings in use at one broker, and those set at run time for all, by name.

    broker: its id. version: of the newest change of any setting; 0 without one.
    """

    broker: str
    used: Sequence[UsedSetting]
    stored: Sequence[SettingChange]
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeSetting:
    """A request to set, unset (without `value`) or roll back (to its value `as_of` a version) one setting.

    version: refused unless the setting is at this version; 0: not set before. changed_by: used only without
    authentication; with it, the user of the call is recorded.
    """

    name: str
    value: str | None = None
    as_of: Natural | None = None
    version: Natural | None = None
    changed_by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingHistoryQuery:
    """A query of a setting's changes; "": of all, the newest 100."""

    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingHistory:
    """Changes, the newest first."""

    changes: Sequence[SettingChange]


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchSettings:
    """A request that waits for a change newer than `version`, at most wait_ms. prefixes: of names.

    version: of the last reply; 0: none.
    """

    prefixes: Sequence[str] = ()
    version: Natural = 0
    wait_ms: Annotated[int, NumberRange(0, 300_000)] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedSettings:
    """All set settings with the prefixes, not only changed ones. version: of the newest change of any setting."""

    version: int
    settings: Sequence[SettingChange]


class SettingsService:
    """The service Settings."""

    show: Final = Method("Settings/Show", Nothing, SettingsInUse)
    change: Final = Method("Settings/Change", ChangeSetting, SettingChange)
    """Change one setting. Not idempotent without a version."""
    history: Final = Method("Settings/History", SettingHistoryQuery, SettingHistory)
    watch: Final = Method("Settings/Watch", WatchSettings, WatchedSettings)
