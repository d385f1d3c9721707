"""The settings of applications for threads: the asyncio ones on the background loop of the process."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Self

from txmsg.client.async_settings import AsyncSettings, Changed
from txmsg.errors import MisuseError
from txmsg.runtime.durations import Seconds
from txmsg.runtime.forks import renew_in_children
from txmsg.runtime.process import LoopThread, shared_loop
from txmsg.wire.credential import TokenChoice
from txmsg.wire.tls import TlsChoice


class Settings:
    """The settings of applications in a Notify database, for programs without asyncio. See AsyncSettings.

    A forked child needs its own, with its own copy.
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
        self._make = partial(
            AsyncSettings, brokers, prefix=prefix, copy=copy, timeout_s=timeout_s, tls=tls, token=token
        )
        self._renew()
        renew_in_children(self)

    def _renew(self) -> None:
        self._core = self._make()
        self._thread: LoopThread | None = None
        self._lock = threading.Lock()

    def start(self) -> Self:
        """Return when a broker has sent the settings, or with those of the copy after timeout_s. Idempotent.

        Raises BrokerUnavailable if there is neither.
        """
        with self._lock:
            if self._thread is None:
                thread = shared_loop()
                thread.call(self._core.start())
                thread.at_exit(self, self._core.close)
                self._thread = thread
        return self

    def close(self) -> None:
        """Stop following changes; `get` still returns the last values. Closing twice is fine."""
        with self._lock:
            thread, self._thread = self._thread, None
            if thread is not None:
                thread.call(self._core.close())
                thread.at_exit(self, None)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def get(self, name: str, default: str | None = None) -> str | None:
        """Return the present value; the default if it is not set."""
        return self._core.get(name, default)

    def watch(self, name: str, changed: Changed) -> None:
        """Call `changed(value)` now and at each change of the setting, with None if it is unset.

        Called on txmsg's loop, so it must not block. Its exceptions are logged.
        """
        thread = self._thread
        if thread is None:
            raise MisuseError("settings are watched once they are followed: call start() first, or use `with`")

        async def watch() -> None:
            self._core.watch(name, changed)

        thread.call(watch())
