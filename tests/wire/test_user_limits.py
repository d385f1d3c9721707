"""Limits of one user at a server, with real clients: a user at its limit is refused or slowed, others are not."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.waiting import until_async
from tests.wire.services import Echo, ask, serving
from tests.wire.test_authentication import DESCRIBE_CLUSTER, Users, permissions, users
from txmsg.errors import BrokerUnavailable, Overloaded, PermissionDenied, Unauthenticated
from txmsg.wire.access import failures as failures_module
from txmsg.wire.access.failures import DELAY_S_MAX, FREE, Failures
from txmsg.wire.access.limits import Usage, Usages, UserLimits
from txmsg.wire.access.rules import ADMIN, Rule
from txmsg.wire.access.tokens import new_token
from txmsg.wire.blocking import BlockingChannel
from txmsg.wire.channel import Channel

__all__ = ["permissions", "users"]
WAIT_S = 60.0


def limit(users: Users, name: str, **limits: float) -> None:
    users.users[name] = replace(users.users[name], limits=limits)
    users.use()


def call_blocking(address: str, token: str) -> None:
    with BlockingChannel(address, token=token, tls=False) as channel:
        channel.call(Echo.back, ask(), timeout_s=WAIT_S)


# ---- limits


async def test_connections_above_the_limit_are_refused_and_those_of_others_are_not(users: Users) -> None:
    anna, bert = users.add("anna", ADMIN).text, users.add("bert", ADMIN).text
    limit(users, "anna", connections=2)
    async with serving(guard=users.guard) as (address, _, server):
        async with Channel(address, token=anna) as one, Channel(address, token=anna) as two:
            for channel in (one, two):
                await channel.call(Echo.back, ask(), timeout_s=WAIT_S)
            with pytest.raises(Overloaded, match="txmsg user limit anna --connections N"):
                async with Channel(address, token=anna) as three:
                    await three.call(Echo.back, ask(), timeout_s=WAIT_S)
            with pytest.raises(Overloaded, match="txmsg user limit anna --connections N"):
                await asyncio.to_thread(call_blocking, address, anna)
            async with Channel(address, token=bert) as other:
                await other.call(Echo.back, ask(), timeout_s=WAIT_S)
        await until_async(lambda: not server.shared.connections)
        async with Channel(address, token=anna) as again:
            await again.call(Echo.back, ask(), timeout_s=WAIT_S)


async def test_pending_bytes_above_the_limit_are_refused_except_for_a_single_request(users: Users) -> None:
    anna, bert = users.add("anna", ADMIN).text, users.add("bert", ADMIN).text
    limit(users, "anna", in_flight_bytes=1000)
    async with serving(guard=users.guard) as (address, answers, _):
        async with Channel(address, token=anna) as one, Channel(address, token=anna) as two:
            large = asyncio.create_task(one.call(Echo.wait, ask(bytes(5000)), timeout_s=WAIT_S))
            await until_async(lambda: answers.begun == 1)
            with pytest.raises(Overloaded, match="--bytes N"):
                await two.call(Echo.back, ask(bytes(500)), timeout_s=WAIT_S)
            async with Channel(address, token=bert) as other:
                await other.call(Echo.back, ask(bytes(5000)), timeout_s=WAIT_S)
            answers.go.set()
            await large
            await two.call(Echo.back, ask(bytes(5000)), timeout_s=WAIT_S)


async def test_user_at_its_rate_waits_and_one_far_above_it_is_refused(users: Users) -> None:
    anna, bert = users.add("anna", ADMIN).text, users.add("bert", ADMIN).text
    limit(users, "anna", requests_per_s=2)
    async with serving(guard=users.guard) as (address, answers, _):
        async with Channel(address, token=anna) as greedy, Channel(address, token=bert) as modest:
            calls = [asyncio.create_task(greedy.call(Echo.back, ask(), timeout_s=WAIT_S)) for _ in range(40)]
            with pytest.raises(Overloaded, match="2 requests/s are allowed"):
                await asyncio.gather(*calls)
            assert answers.begun < 10
            for _ in range(100):  # all at once, while calls of the other one wait
                await modest.call(Echo.back, ask(), timeout_s=WAIT_S)
            assert not all(call.done() for call in calls)
            limit(users, "anna")
            await greedy.call(Echo.back, ask(), timeout_s=WAIT_S)
            for call in calls:
                call.cancel()


async def test_call_waiting_for_its_rate_is_refused_if_its_rule_is_removed(users: Users) -> None:
    anna = users.add("anna").text
    users.rules = [Rule("anna", *DESCRIBE_CLUSTER, "*")]
    limit(users, "anna", requests_per_s=4)
    async with serving(guard=users.guard) as (address, answers, server), Channel(address, token=anna) as channel:
        calls = [asyncio.create_task(channel.call(Echo.back, ask(), timeout_s=WAIT_S)) for _ in range(8)]
        await until_async(lambda: server.shared.calls_begun == len(calls))
        users.rules = []
        users.use()
        begun = answers.begun
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert begun == answers.begun < len(calls)
        assert sum(isinstance(result, PermissionDenied) for result in results) == len(calls) - begun


async def test_message_rate_counts_messages_and_not_requests() -> None:
    now = 0.0
    usage = Usage("anna", UserLimits(messages_per_s=10), lambda: now)
    await usage.messages(1000)
    with pytest.raises(Overloaded, match="10 messages/s are allowed"):
        await usage.messages(1)
    now = 100.0
    await usage.messages(1)


def test_reconnecting_user_keeps_its_used_rate_and_a_deleted_user_is_forgotten() -> None:
    usages = Usages(lambda _: UserLimits(requests_per_s=1))
    usage = usages.enter("anna")
    usage.connections -= 1
    assert usages.enter("anna") is usage
    usages.apply_limits({"anna": None})
    assert usages.enter("anna") is usage
    usages.apply_limits({})
    assert usages.enter("anna") is not usage


def test_limits_of_a_user_override_the_defaults() -> None:
    limits = UserLimits(connections=5, requests_per_s=7)
    assert limits.with_own({"connections": 0}) == UserLimits(requests_per_s=7)
    assert limits.with_own({"connections": 1, "of_a_newer_release": 2}) == UserLimits(connections=1, requests_per_s=7)
    assert not UserLimits().is_any


# ---- guessing


async def test_failed_logins_are_answered_later_and_others_are_not(
    users: Users, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures_module, "FREE", 0)
    good = users.add("anna", ADMIN).text
    async with serving(guard=users.guard) as (address, _, server):
        async with Channel(address, token=new_token().text) as bad:
            guess = asyncio.create_task(bad.call(Echo.back, ask(), timeout_s=WAIT_S))
            await until_async(lambda: server.shared.refusing == 1)
            async with Channel(address, token=good) as channel:
                await channel.call(Echo.back, ask(), timeout_s=WAIT_S)
            assert not guess.done()
            with pytest.raises(Unauthenticated):
                await guess
        assert server.shared.refusing == 0


async def test_most_of_many_failing_logins_are_disconnected(users: Users, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures_module, "FREE", 0)
    monkeypatch.setattr("txmsg.wire.server_connection._REFUSING_MAX", 0)
    async with serving(guard=users.guard) as (address, _, server):
        with pytest.raises(BrokerUnavailable, match="too many logins are refused"):
            async with Channel(address, token=new_token().text) as channel:
                await channel.call(Echo.back, ask(), timeout_s=WAIT_S)
        await until_async(lambda: not server.shared.connections)
        assert server.shared.refusing == 0


def test_failure_delays_grow_expire_and_are_bounded() -> None:
    failures = Failures(keys_max=100)
    delays = [failures.delay_s(0.0, "10.0.0.1") for _ in range(20)]
    assert delays[:FREE] == [0.0] * FREE
    assert 0 < delays[FREE] < delays[FREE + 1] < delays[-1] == DELAY_S_MAX
    assert failures.delay_s(0.0, "10.0.0.2", "10.0.0.1") == DELAY_S_MAX
    assert failures.delay_s(1000.0, "10.0.0.1") == 0.0
    for number in range(1000):
        failures.delay_s(1000.0, f"10.1.0.{number}")
    assert len(failures) == 100
