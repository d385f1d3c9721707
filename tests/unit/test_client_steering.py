"""Application of client settings by a client."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from tests.answered_brokers import AnsweredBrokers
from tests.methods import made
from txmsg.administration.settings import SettingChange, WatchedSettings, WatchSettings
from txmsg.client import steering
from txmsg.settings.clients import ClientConfig
from txmsg.wire.method import Method

DEADLINE_S = 60.0


class Broker(AnsweredBrokers):
    """A broker that answers each request with one setting until the client has applied it; then with nothing."""

    async def answer(self, address: str, method: Method[Any, Any], request: WatchSettings) -> WatchedSettings:
        if request.version:
            await asyncio.Event().wait()
        return WatchedSettings(version=7, settings=[made(SettingChange, name="client.concurrency", value="3")])


async def test_a_config_that_failed_to_apply_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steering, "_PAUSE_S_MIN", 0.001)
    tried: list[ClientConfig] = []
    used = asyncio.Event()

    def use(config: ClientConfig) -> None:
        tried.append(config)
        if len(tried) < 3:
            raise RuntimeError("not yet")
        used.set()

    following = asyncio.create_task(steering.follow(Broker(["here:1"]), "g", use))
    try:
        await asyncio.wait_for(used.wait(), DEADLINE_S)
    finally:
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following
    assert [config.concurrency for config in tried] == [3, 3, 3]
