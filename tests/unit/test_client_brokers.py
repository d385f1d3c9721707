"""The broker list of a client and its choice of a broker, from routes of brokers and configured addresses."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from txmsg.client.channel import Brokers
from txmsg.wire.v1.txmsg_pb2 import RouteChanged

A, B = b"a" * 16, b"b" * 16


@asynccontextmanager
async def brokers_at(*addresses: str) -> AsyncIterator[Brokers]:
    brokers = Brokers(addresses)
    try:
        yield brokers
    finally:
        await brokers.close()


def route(
    this: str, *brokers: str, draining: tuple[str, ...] = (), shard: bytes = b"", is_cut_off: bool = False
) -> RouteChanged:
    return RouteChanged(this=this, brokers=brokers, draining=draining, shard=shard, is_cut_off=is_cut_off)


async def test_brokers_are_learned_and_forgotten_but_the_configured_one_stays() -> None:
    async with brokers_at("a:1") as brokers:
        changes: list[list[str]] = []
        brokers.watch(lambda: changes.append(brokers.addresses))
        brokers.learn("a:1", route("a:1", "a:1", "b:1", "c:1"))
        brokers.learn("b:1", route("b:1", "a:1", "b:1", "c:1"))
        brokers.learn("c:1", route("c:1", "b:1", "c:1"))
        brokers.learn("c:1", route("c:1", "c:1"))
        assert changes == [["a:1", "b:1", "c:1"], ["a:1", "c:1"]]


async def test_a_broker_with_two_addresses_is_listed_once() -> None:
    async with brokers_at("localhost:1", "proxy:1") as brokers:
        brokers.learn("localhost:1", route("10.0.0.1:1", "10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"))
        assert brokers.addresses == ["localhost:1", "proxy:1", "10.0.0.2:1", "10.0.0.3:1"]
        brokers.learn("proxy:1", route("10.0.0.2:1", "10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"))
        assert brokers.addresses == ["localhost:1", "proxy:1", "10.0.0.3:1"]


async def test_a_configured_broker_that_left_keeps_its_address_but_not_its_name() -> None:
    async with brokers_at("localhost:1", "b:1") as brokers:
        assert brokers.names == ["b:1", "localhost:1"], "none has told anything yet"
        brokers.learn("localhost:1", route("a:1", "a:1", "b:1", "c:1"))
        assert brokers.names == ["a:1", "b:1", "c:1"]
        brokers.learn("localhost:1", route("a:1", "a:1"))
        assert (brokers.names, brokers.addresses) == (["a:1"], ["localhost:1", "b:1"])
        brokers.learn("localhost:1", route("a:1", is_cut_off=True))
        assert brokers.names == ["a:1"]
        brokers.learn("b:1", route("b:1", "a:1", "b:1"))
        assert brokers.names == ["a:1", "b:1"]


async def test_a_broker_without_a_complete_route_does_not_change_the_list() -> None:
    async with brokers_at("a:1") as brokers:
        brokers.learn("a:1", route("a:1", "a:1", "b:1"))
        brokers.learn("b:1", route("b:1"))  # cut off from its database
        brokers.learn("a:1", RouteChanged(brokers=["a:1"]))  # has no name of its own
        brokers.learn("gone:1", route("gone:1", "gone:1"))
        assert brokers.addresses == ["a:1", "b:1"]


async def test_clients_spread_over_the_brokers_that_accept_messages() -> None:
    chosen: Counter[str] = Counter()

    for _ in range(100):
        async with brokers_at("a:1") as brokers:
            brokers.learn("a:1", route("a:1", "a:1", "b:1", "c:1", "d:1", draining=("d:1",)))
            chosen[brokers.current.address] += 1
    assert set(chosen) == {"a:1", "b:1", "c:1"}
    assert min(chosen.values()) > 12


async def test_a_new_broker_gets_its_share_of_clients_and_the_rest_stay() -> None:
    moved = 0

    for _ in range(160):
        async with brokers_at("a:1") as brokers:
            brokers.learn("a:1", route("a:1", "a:1", "b:1", "c:1"))
            before = brokers.current
            brokers.learn("a:1", route("a:1", "a:1", "b:1", "c:1", "new:1"))
            assert brokers.current is before or brokers.current.address == "new:1"
            moved += brokers.current is not before
    assert 15 < moved < 70  # a quarter


async def test_a_client_leaves_a_draining_broker() -> None:
    async with brokers_at("a:1") as brokers:
        brokers.learn("a:1", route("a:1", "a:1", "b:1"))
        for draining, other in (("a:1", "b:1"), ("b:1", "a:1")):
            brokers.learn("a:1", route("a:1", "a:1", "b:1", draining=(draining,)))
            assert brokers.current.address == other


async def test_nothing_is_sent_to_a_listed_broker_of_another_database(caplog: pytest.LogCaptureFixture) -> None:
    async with brokers_at("a:1", "b:1", "strange:1") as brokers:
        for address in ("a:1", "b:1"):
            brokers.learn(address, route(address, "a:1", "b:1", shard=A))
        for _ in range(2):
            brokers.learn("strange:1", route("strange:1", "strange:1", "stranger:1", shard=B))
        assert brokers.shard == A
        assert brokers.addresses == ["a:1", "b:1", "strange:1"]
        for _ in range(50):
            assert brokers._choice().address != "strange:1"
        assert brokers.current.address != "strange:1"
    [record] = caplog.records
    assert "strange:1 is not used" in record.getMessage()


async def test_a_recreated_database_replaces_the_former_one() -> None:
    async with brokers_at("a:1", "b:1") as brokers:
        for shard in (A, B):
            brokers.learn("a:1", route("a:1", "a:1", "b:1", shard=shard))
            brokers.learn("b:1", route("b:1", "a:1", "b:1", shard=shard))
            assert brokers.shard == shard
            assert {brokers._choice().address for _ in range(100)} == {"a:1", "b:1"}
            brokers.learn("b:1", route("b:1", "b:1", shard=shard))


async def test_a_database_is_failing_when_each_of_its_brokers_is_cut_off() -> None:
    async with brokers_at("a:1") as brokers:
        brokers.learn("a:1", route("a:1", "a:1", "b:1", shard=A))
        for cut_off in (True, False):
            brokers.learn("a:1", route("a:1", shard=A, is_cut_off=cut_off))
            assert not brokers.is_failing
            brokers.learn("b:1", route("b:1", shard=A, is_cut_off=True))
            assert brokers.is_failing == brokers.are_cut_off == cut_off
