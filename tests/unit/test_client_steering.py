"""How a client follows what operators set for it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, cast

import pytest

from txmsg.client import steering
from txmsg.client.channel import Brokers
from txmsg.settings.clients import ClientConfig
from txmsg.wire.v1 import settings_pb2 as pb

DEADLINE_S = 60.0


class Broker:
    """Answers each request with one setting, as long as the client has not taken it; then with nothing."""

    addresses = ("here:1",)

    async def call(self, method: Any, request: pb.WatchSettingsRequest, *, timeout_s: float) -> pb.WatchSettingsReply:
        if request.version:
            await asyncio.Event().wait()
        return pb.WatchSettingsReply(version=7, settings=[pb.StoredSetting(name="client.concurrency", value="3")])


async def test_what_could_not_be_put_to_use_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steering, "_PAUSE_S_MIN", 0.001)
    tried: list[ClientConfig] = []
    used = asyncio.Event()

    def use(config: ClientConfig) -> None:
        tried.append(config)
        if len(tried) < 3:
            raise RuntimeError("not yet")
        used.set()

    following = asyncio.create_task(steering.follow(cast(Brokers, Broker()), "g", use))
    try:
        await asyncio.wait_for(used.wait(), DEADLINE_S)
    finally:
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following
    assert [config.concurrency for config in tried] == [3, 3, 3]
