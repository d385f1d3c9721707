"""Settings at run time: keeps them in memory, applies them, checks changes, and wakes clients that watch.

Brokers are notified of a change, and poll for one every few seconds. Values that a broker cannot apply, because they
contradict its file or options, are logged, and it keeps those it has.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from txmsg.administration.settings import SettingChange, UsedSetting
from txmsg.broker.config import BrokerConfig
from txmsg.broker.periodic import repeat
from txmsg.broker.store.settings import SettingStore
from txmsg.errors import BrokerUnavailable, MisuseError, shown
from txmsg.runtime.logs import EventLog, set_log_level
from txmsg.settings.catalogue import Setting, settings_of
from txmsg.settings.clients import CLIENT, ClientConfig
from txmsg.settings.live import GivenSettings, replaced, value_in
from txmsg.settings.sources import DEFAULT, unknown

_log = EventLog(__name__)

APPLICATION: Final = "app"
"""The scope of settings that applications store here; their names are free."""
BROKER: Final = "broker"
_LOOK_S: Final = 5.0
_NAME: Final = re.compile(r"(?=.{1,300}\Z)[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)+(@[A-Za-z0-9._%-]+)?")
_VALUE_SIZE_BYTES_MAX: Final = 65_536
_BY_LENGTH_MAX: Final = 200


class RunTimeSettings:
    """The settings of one Notify database, as this broker knows them.

    given: the settings of this process from its file, environment and options. Parts with live settings register with
    `on_change` when they are made.
    """

    def __init__(self, given: GivenSettings[BrokerConfig], store: SettingStore, admin_store: SettingStore) -> None:
        self.config = given.config
        """The present settings."""
        self.version = 0
        """The version of the newest known change."""
        self._given = given
        given.use = self._give
        self._store = store
        self._admin_store = admin_store
        self._on_change: list[Callable[[BrokerConfig], None]] = []
        self._stored: dict[str, SettingChange] = {}
        self._taken: dict[str, SettingChange] = {}
        self._epoch = 0
        """The number of times that the database has gone back."""
        self._catalogue = {each.full_name: each for each in settings_of(BrokerConfig, BROKER)}
        self._of_clients = {each.full_name: each for each in settings_of(ClientConfig, CLIENT)}
        self._soon = asyncio.Event()
        self._changed = asyncio.Event()
        self._closed = False
        self._known = asyncio.Event()
        self._looking = asyncio.Lock()

    def on_change(self, use: Callable[[BrokerConfig], None]) -> None:
        """Call this with the configuration when it changes."""
        self._on_change.append(use)

    def apply_settings(self, config: BrokerConfig) -> None:
        """Apply the live settings of a configuration from now on."""
        if config.log_level != self.config.log_level:
            set_log_level(config.log_level)
        self.config = config
        for use in self._on_change:
            use(config)

    # ---- keeping up

    def _give(self, _: BrokerConfig) -> None:
        if self._known.is_set():  # else the first read applies it: settings at run time take precedence
            self._apply_stored()

    def look_soon(self) -> None:
        """Read settings at once: one was changed."""
        self._soon.set()

    def close(self) -> None:
        """End all waiting for changes."""
        self._closed = True
        self._changed.set()

    def forget_settings(self, _: str) -> None:
        """Drop the settings read so far: the database has gone back, perhaps to others."""
        self._epoch += 1
        self._stored = {}
        self.version = 0
        self._known.clear()
        self._soon.set()

    async def run(self) -> None:
        """Repeat `refresh_once` until cancelled."""
        await repeat("reading settings", self.refresh_once, _LOOK_S, soon=self._soon)

    async def refresh_once(self) -> None:
        """Read the changes since the last read, apply those of the broker, and wake clients that watch."""
        async with self._looking:  # of two concurrent reads the older one could end last, and win
            await self._read_stored()

    async def _read_stored(self) -> None:
        epoch = self._epoch
        rows = await self._store.changed_since(self.version)
        if epoch != self._epoch:  # these rows are incomplete: `forget_settings` has asked for another read
            return
        if not rows and self._known.is_set():
            return
        for row in rows:
            self.version = max(self.version, row.version)
            if row.value is None:
                self._stored.pop(row.name, None)
            else:
                self._stored[row.name] = row
        self._apply_stored()
        self._known.set()
        self._changed.set()
        self._changed = asyncio.Event()

    def _apply_stored(self) -> None:
        try:
            stored = {row.name: row.value for row in self._stored.values() if row.value is not None}
            config = self._with(stored, self._given.config.broker_id)
        except MisuseError as exc:
            _log.error(
                "settings.refused",
                "run-time settings are not applied, the broker keeps those it has: %(error)s",
                error=exc,
            )
            return
        self._taken = dict(self._stored)
        if config != self.config:
            self.apply_settings(config)
            _log.info("settings.taken", "settings of version %(version)d are applied", version=self.version)

    def _with(self, stored: Mapping[str, str], broker_id: str) -> BrokerConfig:
        """Return this broker's own configuration with the settings stored for all brokers, and for one.

        Raises MisuseError.
        """
        values: dict[str, object] = {}
        for name in sorted(stored, key=lambda each: "@" in each):  # settings for a single broker come last
            setting, target = self._setting_of(name)
            if setting is not None and target in {"", broker_id}:
                values[setting.name] = setting.value_of(stored[name])
        return replaced(self._given.config, values)

    def _setting_of(self, name: str) -> tuple[Setting | None, str]:
        full_name, _, target = name.partition("@")
        return self._catalogue.get(full_name), target

    # ---- looking

    def used(self) -> list[UsedSetting]:
        """Return each setting of this broker, in the order of the catalogue."""
        found = []
        for full_name, setting in self._catalogue.items():
            row = self._taken.get(f"{full_name}@{self._given.config.broker_id}") or self._taken.get(full_name)
            source = self._given.sources.get(setting.name, DEFAULT)
            if row is not None:
                source = f"version {row.version}, by {row.changed_by}"
            value = setting.in_words(value_in(self.config, setting.name))
            found.append(UsedSetting(name=full_name, value=value, source=source))
        return found

    def stored(self, prefixes: Sequence[str] = ("",)) -> list[SettingChange]:
        """Return the settings set at run time, by name."""
        return [self._stored[name] for name in sorted(self._stored) if name.startswith(tuple(prefixes))]

    async def changed_from(self, version: int, wait_s: float) -> None:
        """Return when the newest change is another one than this, or the time is over.

        Raises BrokerUnavailable when the broker stops, so that clients ask another one, and if the settings are
        unknown: a client that watches must not take them for unset.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_S):
                await self._known.wait()
        if version > self.version:  # the client has more from another broker, or the database has gone back
            await self.refresh_once()
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while self._known.is_set() and self.version == version and not self._closed:
                    await self._changed.wait()
        if self._closed:
            raise BrokerUnavailable("this broker is stopping: ask another broker")
        if not self._known.is_set():  # not read yet, or the database went back meanwhile
            raise BrokerUnavailable("this broker could not read the settings yet: ask again, or another broker")

    async def history(self, name: str) -> Sequence[SettingChange]:
        """Return the kept changes of a setting, newest first; without a name the newest of all settings."""
        return await self._admin_store.history(name)

    # ---- changing

    async def change(self, name: str, value: str | None, *, expected: int | None, changed_by: str) -> SettingChange:
        """Set or unset a setting if all brokers could apply it, as far as known here. Raises MisuseError."""
        if not changed_by or len(changed_by) > _BY_LENGTH_MAX or not changed_by.isprintable():
            raise MisuseError(f"changed_by={shown(changed_by)} must be 1 to {_BY_LENGTH_MAX} characters on one line")
        self._check_form(name)
        if value is not None:
            self._check_name(name)
            self._check_value(name, value)
        row = await self._admin_store.change(
            name, value, expected=expected, changed_by=changed_by, check=partial(self._check_among, name, value)
        )
        _log.info(
            "settings.changed",
            "setting %(setting)s is %(value)s since version %(version)d, by %(changed_by)s",
            setting=row.name,
            value="unset" if row.value is None else shown(row.value),
            version=row.version,
            changed_by=row.changed_by,
        )
        self.look_soon()
        with suppress(BrokerUnavailable):  # it is changed, and a later read applies it
            await self.refresh_once()  # the next request to this broker sees the change
        return row

    async def roll_back(self, name: str, version: int, *, expected: int | None, changed_by: str) -> SettingChange:
        """Set a setting to its value at this version, or at the last one before. Raises MisuseError."""
        for row in await self._admin_store.history(name):
            if row.version <= version:
                return await self.change(name, row.value, expected=expected, changed_by=changed_by)
        raise MisuseError(
            f"no change of {shown(name)} up to version {version} is kept: `txmsg config history` lists those that are"
        )

    def _check_form(self, name: str) -> None:
        if not _NAME.fullmatch(name):
            raise MisuseError(
                f"{shown(name)} is not the name of a setting: give SCOPE.NAME of letters, digits, dots, dashes and _, "
                "and @TARGET for one broker or group"
            )

    def _check_name(self, name: str) -> None:
        scope = name.partition(".")[0]
        if scope == APPLICATION:
            return
        if scope not in {BROKER, CLIENT}:
            raise unknown(scope, (BROKER, CLIENT, APPLICATION))
        known = self._of_clients if scope == CLIENT else self._catalogue
        setting = known.get(name.partition("@")[0])
        if setting is None:
            raise unknown(name, known)
        if not setting.live:
            raise MisuseError(
                f"{setting.full_name} cannot change at run time: give {setting.option or setting.variable} when "
                "brokers are restarted"
            )

    def _check_value(self, name: str, value: str) -> None:
        if len(value.encode(errors="replace")) > _VALUE_SIZE_BYTES_MAX or "\0" in value:
            raise MisuseError(f"the value of {name} must be at most {_VALUE_SIZE_BYTES_MAX} bytes of text without NUL")
        full_name = name.partition("@")[0]
        setting = self._catalogue.get(full_name) or self._of_clients.get(full_name)
        if setting is not None:
            setting.value_of(value)

    def _check_among(self, name: str, value: str | None, stored: Mapping[str, str]) -> None:
        """Raise MisuseError if the change contradicts the settings stored at this moment, for any broker."""
        if (
            value is None and name not in stored
        ):  # a stored name can always be unset, also one that a release has removed
            self._check_name(name)
        after = {each: text for each, text in {**stored, name: value}.items() if text is not None}
        target = name.partition("@")[2]
        for broker_id in [target] if target else sorted({"", *(each.partition("@")[2] for each in after)}):
            told = self._contradiction(after, broker_id)
            # A contradiction from before must not block other changes: it comes from options of this broker.
            if told and told != self._contradiction(stored, broker_id):
                raise MisuseError(f"the settings of {broker_id or 'all brokers'} would contradict each other: {told}")

    def _contradiction(self, stored: Mapping[str, str], broker_id: str) -> str:
        """Return the contradiction between settings of this broker and these; empty if they fit."""
        try:
            self._with(stored, broker_id)
        except MisuseError as exc:
            return str(exc)
        return ""
