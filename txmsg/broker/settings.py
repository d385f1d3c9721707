"""Settings at run time: keeps them in memory, has the broker take them, checks changes, and wakes those who watch.

Brokers hear of a change by a notice, and look for one every few seconds. Values that a broker cannot take, because they
contradict its file or options, are logged, and it goes on with those it has.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar, cast

from txmsg.broker.config import BrokerConfig
from txmsg.broker.periodic import repeat
from txmsg.broker.store.settings import SettingRow, SettingStore
from txmsg.errors import BrokerUnavailable, MisuseError, shown
from txmsg.settings.catalogue import Setting, settings_of
from txmsg.settings.sources import DEFAULT, unknown

_log = logging.getLogger(__name__)

T = TypeVar("T")

APPLICATION: Final = "app"
"""The scope of what applications keep here; their names are free."""
BROKER: Final = "broker"
_LOOK_S: Final = 5.0
_NAME: Final = re.compile(r"(?=.{1,300}\Z)[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)+(@[A-Za-z0-9._%-]+)?")
_VALUE_SIZE_BYTES_MAX: Final = 65_536
_BY_LENGTH_MAX: Final = 200


class RunTimeSettings:
    """The settings of one Notify database, as this broker knows them.

    sources: where this process has the values of its configuration from. use: takes a configuration when it changes.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store: SettingStore,
        admin_store: SettingStore,
        use: Callable[[BrokerConfig], None],
        *,
        sources: Mapping[str, str],
    ) -> None:
        self.config = config
        self.version = 0
        """Of the newest change that is known."""
        self._given = config
        self._store = store
        self._admin_store = admin_store
        self._use = use
        self._sources = sources
        self._stored: dict[str, SettingRow] = {}
        self._catalogue = {each.full_name: each for each in settings_of(BrokerConfig, BROKER)}
        self._soon = asyncio.Event()
        self._changed = asyncio.Event()
        self._closed = False
        self._known = asyncio.Event()
        self._looking = asyncio.Lock()

    # ---- keeping up

    def look_soon(self) -> None:
        """Something was changed: reads it at once."""
        self._soon.set()

    def close(self) -> None:
        """Ends all waiting for changes."""
        self._closed = True
        self._changed.set()

    def forget(self, _: str) -> None:
        """The database has gone back, perhaps to other settings."""
        self._stored = {}
        self.version = 0
        self._known.clear()
        self._soon.set()

    async def run(self) -> None:
        """Repeats `refresh_once` until cancelled."""
        await repeat("reading settings", self.refresh_once, _LOOK_S, soon=self._soon)

    async def refresh_once(self) -> None:
        """Reads what was changed since the last look, takes what is the broker's, and wakes those who watch."""
        async with self._looking:  # two looks could end in the other order, and the older one would win
            await self._look()

    async def _look(self) -> None:
        rows = await self._store.changed_since(self.version)
        if not rows and self._known.is_set():
            return
        for row in rows:
            self.version = max(self.version, row.version)
            if row.value is None:
                self._stored.pop(row.name, None)
            else:
                self._stored[row.name] = row
        self._take()
        self._known.set()
        self._changed.set()
        self._changed = asyncio.Event()

    def _take(self) -> None:
        try:
            config = self._with({row.name: row.value for row in self._stored.values() if row.value is not None})
        except MisuseError as exc:
            _log.error("settings at run time are not taken, the broker goes on with those it has: %s", exc)
            return
        if config != self.config:
            self.config = config
            self._use(config)
            _log.info("the settings are those of version %d now", self.version)

    def _with(self, stored: Mapping[str, str]) -> BrokerConfig:
        """The configuration with what is stored for all brokers, and for this one. Raises MisuseError."""
        values: dict[str, object] = {}
        for name in sorted(stored, key=lambda each: "@" in each):  # what is for this broker alone comes last
            setting, target = self._setting_of(name)
            if setting is not None and target in {"", self._given.broker_id}:
                values[setting.name] = setting.value_of(stored[name])
        return replaced(self._given, values)

    def _setting_of(self, name: str) -> tuple[Setting | None, str]:
        full_name, _, target = name.partition("@")
        return self._catalogue.get(full_name), target

    # ---- looking

    def used(self) -> dict[str, tuple[str, str]]:
        """The value of each setting of this broker in words, and where it comes from."""
        found: dict[str, tuple[str, str]] = {}
        for full_name, setting in self._catalogue.items():
            row = self._stored.get(f"{full_name}@{self._given.broker_id}") or self._stored.get(full_name)
            source = self._sources.get(setting.name, DEFAULT)
            if row is not None:
                source = f"version {row.version}, by {row.changed_by}"
            found[full_name] = (setting.in_words(value_in(self.config, setting.name)), source)
        return found

    def stored(self, prefixes: Sequence[str] = ("",)) -> list[SettingRow]:
        """What is set at run time, by name."""
        return [self._stored[name] for name in sorted(self._stored) if name.startswith(tuple(prefixes))]

    async def changed_from(self, version: int, wait_s: float) -> None:
        """Returns when the newest change is another one than this, the time is over, or the broker stops.

        Raises BrokerUnavailable if the settings are not known: whoever watches must not take them for unset.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_S):
                await self._known.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while self._known.is_set() and self.version == version and not self._closed:
                    await self._changed.wait()
        if not self._known.is_set():  # not read yet, or the database went back meanwhile
            raise BrokerUnavailable("this broker could not read the settings yet: ask again, or another broker")

    async def history(self, name: str) -> Sequence[SettingRow]:
        """The changes of a setting that are kept, the newest first."""
        return await self._admin_store.history(name)

    # ---- changing

    async def change(self, name: str, value: str | None, *, expected: int | None, changed_by: str) -> SettingRow:
        """Sets or unsets one, when all brokers could take it as this one can. Raises MisuseError."""
        if not changed_by or len(changed_by) > _BY_LENGTH_MAX or not changed_by.isprintable():
            raise MisuseError(f"changed_by={shown(changed_by)} must be 1 to {_BY_LENGTH_MAX} characters on one line")
        self._check_name(name)
        if value is not None:
            self._check_value(name, value)
        row = await self._admin_store.change(name, value, expected=expected, changed_by=changed_by)
        _log.info(
            "setting %s is %s since version %d, by %s",
            *(row.name, "unset" if row.value is None else shown(row.value), row.version, row.changed_by),
        )
        self.look_soon()
        with suppress(BrokerUnavailable):  # it is changed, and taken with a later look
            await self.refresh_once()  # whoever asks this broker next sees the change
        return row

    async def roll_back(self, name: str, version: int, *, expected: int | None, changed_by: str) -> SettingRow:
        """Sets a setting to what it was at this version of it, or before it. Raises MisuseError."""
        for row in await self._admin_store.history(name):
            if row.version <= version:
                return await self.change(name, row.value, expected=expected, changed_by=changed_by)
        raise MisuseError(
            f"no change of {shown(name)} up to version {version} is kept: `txmsg config history` lists those that are"
        )

    def _check_name(self, name: str) -> None:
        if not _NAME.fullmatch(name):
            raise MisuseError(
                f"{shown(name)} is not the name of a setting: give SCOPE.NAME of letters, digits, dots, dashes and _, "
                "and @TARGET for one broker or group"
            )
        scope = name.partition(".")[0]
        if scope == APPLICATION:
            return
        if scope != BROKER:
            raise unknown(scope, (BROKER, APPLICATION))
        setting, _ = self._setting_of(name)
        if setting is None:
            raise unknown(name, self._catalogue)
        if not setting.live:
            raise MisuseError(
                f"{setting.full_name} cannot change at run time: give {setting.option or setting.variable} when "
                "brokers are restarted"
            )

    def _check_value(self, name: str, value: str) -> None:
        if len(value.encode(errors="replace")) > _VALUE_SIZE_BYTES_MAX or "\0" in value:
            raise MisuseError(f"the value of {name} must be at most {_VALUE_SIZE_BYTES_MAX} bytes of text without NUL")
        setting, target = self._setting_of(name)
        if setting is None:
            return
        setting.value_of(value)
        known = {row.name: row.value for row in self._stored.values() if row.value is not None}
        here = setting.full_name if target in {"", self._given.broker_id} else name
        self._with({**known, here: value})


def replaced(config: T, values: Mapping[str, object]) -> T:
    """The dataclass with other values by name, those of its parts by `part.name`."""
    own: dict[str, object] = {}
    for name, value in values.items():
        part, dot, rest = name.partition(".")
        own[part] = replaced(own.get(part, getattr(config, part)), {rest: value}) if dot else value
    return cast(T, dataclasses.replace(cast(Any, config), **own)) if own else config


def value_in(config: object, name: str) -> object:
    """The value of a setting by its name in the catalogue."""
    for part in name.split("."):
        config = getattr(config, part)
    return config
