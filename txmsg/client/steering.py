"""Settings that operators give clients at run time: followed at the brokers that a client knows, for one group.

A long poll, as for the settings of applications: brokers keep no state for it. Nothing depends on it: while no broker
answers, a client keeps its present settings.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from txmsg.administration.settings import SettingsService as Service
from txmsg.administration.settings import WatchSettings
from txmsg.client.channel import Brokers
from txmsg.errors import MisuseError, TxmsgError
from txmsg.runtime.logs import EventLog
from txmsg.settings.catalogue import settings_of
from txmsg.settings.clients import CLIENT, ClientConfig

_log = EventLog(__name__)

_HELD_S: Final = 240.0
"""Seconds that a broker holds a request while nothing changes. There may be thousands of idle clients."""
_GRACE_S: Final = 10.0
_PAUSE_S_MIN: Final = 0.5
_PAUSE_S_MAX: Final = 10.0
_CATALOGUE: Final = {each.full_name: each for each in settings_of(ClientConfig, CLIENT)}


async def follow(brokers: Brokers, group: str, use: Callable[[ClientConfig], None]) -> None:
    """Call `use` with the settings of this group at each change; until cancelled."""
    version, used = 0, ClientConfig()
    wait_s, pause_s = 0.0, _PAUSE_S_MIN
    while True:
        request = WatchSettings(prefixes=[f"{CLIENT}."], version=version, wait_ms=int(wait_s * 1000))
        attempts = min(len(brokers.addresses), 3)  # `call` gives an attempt its share of the time
        try:
            reply = await brokers.call(Service.watch, request, timeout_s=attempts * (wait_s + _GRACE_S))
            config = config_for(group, {each.name: each.value for each in reply.settings if each.value is not None})
            if config != used:
                use(config)
                used = config
            version, wait_s, pause_s = reply.version, _HELD_S, _PAUSE_S_MIN  # not before: what fails is tried again
            continue
        except TxmsgError as exc:
            _log.debug("client.settings_unknown", "group %(group)s: %(error)s", group=group, error=exc)
        except Exception:  # noqa: BLE001 - the root of a task
            _log.exception("client.settings_broken", "group %(group)s: following settings failed", group=group)
        await asyncio.sleep(pause_s)
        wait_s, pause_s = 0.0, min(2 * pause_s, _PAUSE_S_MAX)


def config_for(group: str, stored: Mapping[str, str]) -> ClientConfig:
    """Return the settings of a group: those for the group alone win. Values that this release does not accept are
    skipped."""
    values: dict[str, object] = {}
    for full_name, setting in _CATALOGUE.items():
        text = stored.get(f"{full_name}@{group}", stored.get(full_name))
        if text is not None:
            try:
                values[setting.name] = setting.value_of(text)
            except MisuseError as exc:
                _log.warning(
                    "client.setting_refused", "%(setting)s is not applied: %(error)s", setting=full_name, error=exc
                )
    return ClientConfig(**values)  # type: ignore[arg-type]
