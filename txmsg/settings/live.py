"""The configuration that file, environment and options give a process, and its replacement at run time.

Decides which settings change, logs them, and notifies the user of the configuration. Knows no signal and no file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Generic, TypeVar, cast

from txmsg.runtime.logs import EventLog
from txmsg.settings.catalogue import settings_of

_log = EventLog(__name__)

T = TypeVar("T")


class GivenSettings(Generic[T]):
    """The settings given to a process. sources: of their values, in words. `use` is called with new settings."""

    def __init__(self, config: T, sources: Mapping[str, str] = MappingProxyType({})) -> None:
        self.config = config
        self.sources = sources
        self.use: Callable[[T], None] = lambda _: None
        """Called with the new configuration. Its user sets this."""

    def take_live(self, read: T, scope: str, sources: Mapping[str, str]) -> None:
        """Apply the live settings of the configuration that was read. Logs which of the others need a restart."""
        live: dict[str, object] = {}
        for each in settings_of(type(read), scope):
            value = value_in(read, each.name)
            if value == value_in(self.config, each.name):
                continue
            if each.live:
                live[each.name] = value
                _log.info(
                    "settings.given",
                    "%(setting)s is given as %(value)s now",
                    setting=each.full_name,
                    value=each.in_words(value) or "none",
                )
            elif each.name in sources or each.name in self.sources:  # else its default is made at each start
                _log.warning(
                    "settings.needs_restart",
                    "%(setting)s has changed: restart this process, it keeps the value from before",
                    setting=each.full_name,
                )
        self.sources = sources
        if live:
            self.config = replaced(self.config, live)
            # Only live settings reach `use`: others keep the value that running parts were made with.
            self.use(self.config)
        else:
            _log.info("settings.unchanged", "the settings were read again, and nothing of them changes here")


def replaced(config: T, values: Mapping[str, object]) -> T:
    """Return the dataclass with other values by name, those of its parts by `part.name`."""
    own: dict[str, object] = {}
    for name, value in values.items():
        part, dot, rest = name.partition(".")
        own[part] = replaced(own.get(part, getattr(config, part)), {rest: value}) if dot else value
    return cast(T, dataclasses.replace(cast(Any, config), **own)) if own else config


def value_in(config: object, name: str) -> object:
    """Return the value of a setting by its name in the catalogue."""
    for part in name.split("."):
        config = getattr(config, part)
    return config
