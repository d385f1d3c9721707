"""The links of a consumer to its brokers: the end of one does not affect the others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.answered_brokers import AnsweredBrokers
from tests.waiting import until_async
from txmsg.client.receiving import links as links_module
from txmsg.client.receiving.fetch_budget import FetchBounds
from txmsg.client.receiving.link import Link
from txmsg.client.receiving.links import Links
from txmsg.client.receiving.member import ConsumerMember
from txmsg.client.receiving.shard import Shard
from txmsg.wire.method import Method
from txmsg.wire.v1.txmsg_pb2 import RouteChanged

_MEMBER = ConsumerMember(group="g", client_id="c", subscriptions=())
_BOUNDS = FetchBounds(out_min=10, visibility_timeout_s=60)


class TwoBrokers(AnsweredBrokers):
    """Broker a:1 was configured; b:1 is also known until it leaves. Neither answers."""

    def __init__(self) -> None:
        super().__init__(["a:1"])
        self.list("a:1", "b:1")

    def list(self, *names: str) -> None:
        self.learn("a:1", RouteChanged(this="a:1", brokers=names))

    async def answer(self, address: str, method: Method[Any, Any], request: Any) -> None:
        await asyncio.Event().wait()


class SilentLink(Link):
    """The link to the leaving broker, which is silent, so its poll ends only by cancellation."""

    def __init__(self, brokers: TwoBrokers) -> None:
        super().__init__(Shard(brokers), "b:1", _MEMBER, _BOUNDS, lambda _: None)
        self.flushed = False

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def extend_visibility(self) -> None:
        await asyncio.Event().wait()

    async def idle(self) -> None: ...

    async def flush(self, timeout_s: float) -> None:
        self.flushed = True

    def stop(self) -> None: ...


def links_with(link: SilentLink, brokers: TwoBrokers) -> Links:
    """Return links with `link` and an ordinary one."""

    def new_link(address: str) -> Link:
        return link if address == link.address else Link(Shard(brokers), address, _MEMBER, _BOUNDS, lambda _: None)

    return Links(brokers, new_link, group="g")


async def test_a_consumer_stops_while_a_departed_broker_is_being_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links_module, "SETTLE_S_MAX", 0.05)

    brokers = TwoBrokers()
    link = SilentLink(brokers)
    links = links_with(link, brokers)
    await asyncio.sleep(0)
    brokers.list("a:1")
    async with asyncio.timeout(60):
        await links.stop()  # the poll that it waits for is cancelled under it
        await links.close()
        await links.flush()


async def test_the_keepalive_returns_its_acknowledgements_before_the_final_flush() -> None:
    gave_back: list[bool] = []

    class Keeping(SilentLink):
        async def run(self) -> None: ...

        async def extend_visibility(self) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                gave_back.append(not self.flushed)

    brokers = TwoBrokers()
    link = Keeping(brokers)
    links = links_with(link, brokers)
    await asyncio.sleep(0)
    brokers.list("a:1")
    await until_async(lambda: link.flushed)
    await links.close()
    assert gave_back == [True]


async def test_a_stopping_consumer_also_flushes_to_a_departed_broker_still_waited_for() -> None:
    class Busy(SilentLink):
        async def idle(self) -> None:
            await asyncio.Event().wait()

    brokers = TwoBrokers()
    link = Busy(brokers)
    links = links_with(link, brokers)
    await asyncio.sleep(0)
    brokers.list("a:1")
    await asyncio.sleep(0)
    await links.close()
    assert not link.flushed
    await links.flush()
    assert link.flushed
