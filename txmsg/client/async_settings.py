"""The settings of an application in the Notify database, followed while it runs, with a copy for outages of brokers."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import mkstemp
from typing import Final, Self

from txmsg.administration.settings import SettingsService as Service
from txmsg.administration.settings import WatchedSettings, WatchSettings
from txmsg.client.channel import RETRYABLE, Brokers
from txmsg.errors import BrokerUnavailable, MisuseError, TxmsgError, printable, shown
from txmsg.runtime.background import in_background
from txmsg.runtime.durations import Seconds, check_seconds
from txmsg.runtime.logs import EventLog
from txmsg.wire.brokers import one_database_of
from txmsg.wire.credential import TokenChoice, client_access
from txmsg.wire.tls import TlsChoice

_log = EventLog(__name__)

_SCOPE: Final = "app."
_HELD_S: Final = 20.0
"""Seconds that a broker holds a request while nothing changes."""
_GRACE_S: Final = 10.0
_PAUSE_S_MIN: Final = 0.05
_PAUSE_S_MAX: Final = 2.0
_ATTEMPT_S: Final = 5.0

Changed = Callable[[str | None], object]


class AsyncSettings:
    """The settings of applications in a Notify database, as `txmsg config set app.NAME VALUE` writes them.

    brokers: of one database. prefix: only settings whose names begin with it are followed. copy: a file with the last
    values; with it, `start` succeeds while no broker can be reached, and `get` returns these values. It is written at
    each change, and belongs to one process. timeout_s: how long `start` waits for a broker. tls, token: see
    AsyncProducer.
    """

    def __init__(
        self,
        brokers: str | Sequence[str] | None = None,
        *,
        prefix: str = "",
        copy: Path | str | None = None,
        timeout_s: Seconds = 10.0,
        tls: TlsChoice = None,
        token: TokenChoice = None,
    ) -> None:
        self._addresses = one_database_of(brokers)
        self._access = client_access(tls, token)
        self._prefix = prefix
        self._copy = None if copy is None else Path(copy)
        self._timeout_s = check_seconds("timeout_s", timeout_s, least_s=0, most_s=3600)
        self._values: Mapping[str, str] = {}
        self._copied: Mapping[str, str] | None = None
        self._version = 0
        self._watched: dict[str, list[Changed]] = {}
        self._heard = asyncio.Event()
        self._starting = asyncio.Lock()
        self._following: asyncio.Task[None] | None = None
        self._brokers: Brokers | None = None
        self._refused: TxmsgError | None = None

    # ---- life

    async def start(self) -> Self:
        """Return when a broker has sent the settings, or with those of the copy after timeout_s. Idempotent.

        Raises BrokerUnavailable if there is neither.
        """
        async with self._starting:
            if self._following is None:
                await self._start()
        return self

    async def _start(self) -> None:
        self._copied = None if self._copy is None else await asyncio.to_thread(_read, self._copy)
        if self._copied is not None and not self._values:  # else those from before a close hold
            self._replace_values(self._copied)
        self._brokers = Brokers(self._addresses, **self._access)
        self._following = in_background(self._follow(self._brokers), name="txmsg-settings")
        try:
            await self._first_heard()
        except BaseException:  # also when it is cancelled
            await self.close()
            raise

    async def _first_heard(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._timeout_s):
                await self._heard.wait()
        if self._heard.is_set():
            return
        if self._copied is None:
            told = f": {self._refused}" if self._refused else ""
            raise BrokerUnavailable(
                f"no broker at {', '.join(self._addresses)} sent the settings within {self._timeout_s:g} s, and "
                f"there is no copy of them{told}"
            )
        _log.warning(
            "settings.copy_used", "no broker has sent the settings yet; those of %(path)s are used", path=self._copy
        )

    async def close(self) -> None:
        """Stop following changes; `get` still returns the last values. Closing twice is fine."""
        following, self._following = self._following, None
        if following is not None and self._brokers is not None:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            await self._brokers.close()
            await self._write_copy()  # what was heard right before
            self._heard.clear()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # ---- values

    def get(self, name: str, default: str | None = None) -> str | None:
        """Return the present value; the default if it is not set. For any thread."""
        return self._values.get(name, default)

    def watch(self, name: str, changed: Changed) -> None:
        """Call `changed(value)` now and at each change of the setting, with None if it is unset.

        Called on the loop, so it must not block. Its exceptions are logged.
        """
        if not name.startswith(self._prefix):
            raise MisuseError(f"setting {shown(name)} does not begin with the prefix {shown(self._prefix)}")
        self._watched.setdefault(name, []).append(changed)
        _call(changed, name, self._values.get(name))

    # ---- following

    async def _follow(self, brokers: Brokers) -> None:
        """Ask for changes until cancelled."""
        pause_s = _PAUSE_S_MIN
        while True:
            try:
                await self._hear(await self._watch_settings(brokers))
                pause_s = _PAUSE_S_MIN
                continue
            except TxmsgError as exc:
                if not self._refused or not isinstance(exc, RETRYABLE):
                    _log.warning(
                        "settings.not_followed",
                        "settings are not followed for now, those from before hold: %(error)s",
                        error=exc,
                    )
                self._refused = exc
            except Exception:  # noqa: BLE001 - the root of a task
                _log.exception("settings.following_failed", "following settings failed; retrying")
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)

    async def _hear(self, reply: WatchedSettings) -> None:
        self._refused = None
        self._version = reply.version
        told = {each.name.removeprefix(_SCOPE): each.value for each in reply.settings}
        self._replace_values({name: value for name, value in told.items() if value is not None})
        self._heard.set()
        await self._write_copy()

    async def _write_copy(self) -> None:
        """Bring the copy up to date with what was heard."""
        values = self._values
        if self._copy is not None and self._heard.is_set() and values != self._copied:
            await asyncio.to_thread(_write, self._copy, values)
            self._copied = values

    async def _watch_settings(self, brokers: Brokers) -> WatchedSettings:
        """Return the settings when they differ from the last ones; the first time, and after a failure, at once."""
        is_held = self._heard.is_set() and self._refused is None
        request = WatchSettings(
            prefixes=[f"{_SCOPE}{self._prefix}"],
            version=self._version,
            wait_ms=int(_HELD_S * 1000) if is_held else 0,
        )
        # `call` gives an attempt its share of this.
        attempts = min(len(brokers.addresses), 3)
        attempt_s = _HELD_S + _GRACE_S if is_held else _ATTEMPT_S
        return await brokers.call(Service.watch, request, timeout_s=attempts * attempt_s)

    def _replace_values(self, values: Mapping[str, str]) -> None:
        before, self._values = self._values, values
        for name, watching in list(self._watched.items()):  # a copy: one who is called may watch another one
            if before.get(name) != values.get(name):
                for changed in tuple(watching):
                    _call(changed, name, values.get(name))


def _call(changed: Changed, name: str, value: str | None) -> None:
    try:
        changed(value)
    except Exception:  # noqa: BLE001 - of the application; the others are told, too
        _log.exception("settings.watcher_failed", "what watches setting %(setting)s failed", setting=printable(name))


def _read(path: Path) -> dict[str, str] | None:
    """Return the values of the copy; None if there is none that can be read."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as exc:
        _log.warning(
            "settings.copy_unreadable",
            "the copy of settings at %(path)s cannot be read, and is not used: %(error)s",
            path=path,
            error=exc,
        )
        return None
    if not isinstance(values, dict) or not all(isinstance(each, str) for each in values.values()):
        _log.warning(
            "settings.copy_unusable", "the copy of settings at %(path)s is not one, and is not used", path=path
        )
        return None
    return values


def _write(path: Path, values: Mapping[str, str]) -> None:
    """Replace the copy as a whole. A disk that refuses is logged: the settings themselves are here."""
    try:
        descriptor, made = mkstemp(dir=path.parent, prefix=f".{path.name}.")  # readable by this user only
        try:
            with open(descriptor, "w", encoding="utf-8") as file:
                json.dump(values, file, indent=1, sort_keys=True)
                file.flush()
                # Synced before the rename: after a power cut the name must not refer to an empty file, since the copy
                # is all that a start without brokers has.
                os.fsync(file.fileno())
            os.replace(made, path)
        except OSError:
            os.unlink(made)
            raise
    except OSError as exc:
        _log.error(
            "settings.copy_unwritten",
            "the copy of settings at %(path)s cannot be written: %(error)s",
            path=path,
            error=exc,
        )
