"""Calls of the console that take too long, its channels, and their identities, without a broker."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.wire.certificates import Authority
from tests.wire.services import Echo, ask, serving
from txmsg.administration.cluster import ClusterService, ShowCluster
from txmsg.errors import BrokerUnavailable, OutcomeUnknown, Unauthenticated
from txmsg.ops.console import calls as console_calls
from txmsg.ops.console import database as console_database
from txmsg.ops.console.database import DatabaseBrokers
from txmsg.wire.access.guard import Guard
from txmsg.wire.access.permissions import PERMISSIONS
from txmsg.wire.access.rules import ADMIN, RuleSet
from txmsg.wire.access.snapshot import AccessSnapshot, User
from txmsg.wire.channel import Channel as WireChannel
from txmsg.wire.tls import CA_VARIABLE, CERT_VARIABLE, KEY_VARIABLE


@pytest.fixture
async def database(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[DatabaseBrokers]:
    monkeypatch.setattr(console_database, "_THREADS", 1)
    made = DatabaseBrokers("notify", ["127.0.0.1:1"])
    yield made
    await made.close()


async def test_timed_out_running_call_has_unknown_outcome_and_queued_call_did_not_run(
    database: DatabaseBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console_calls, "CALL_S_MAX", 0.05)
    may_end, done = threading.Event(), []

    def work() -> None:
        may_end.wait(60)
        done.append("first")

    with pytest.raises(OutcomeUnknown, match="it may have been carried out"):
        await database.run(work)
    with pytest.raises(BrokerUnavailable, match="nothing was asked: the console is busy"):
        await database.run(lambda: done.append("second"))
    may_end.set()
    monkeypatch.setattr(console_calls, "CALL_S_MAX", 60.0)
    await database.run(lambda: done.append("third"))
    assert done == ["first", "third"]


async def test_unanswered_call_of_a_thread_has_unknown_outcome(
    database: DatabaseBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask(*_: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(database, "ask_any", ask)
    monkeypatch.setattr(console_database, "CALL_S_MAX", -0.95)  # a thread waits 1 s longer
    with pytest.raises(OutcomeUnknown, match="it may have been carried out"):
        await asyncio.to_thread(database.ask_from_thread, ClusterService.show, ShowCluster())


async def test_channels_are_bounded_and_the_most_recently_used_are_kept(
    database: DatabaseBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_open: list[str] = []

    class Channel(WireChannel):
        def __init__(self, address: str, *, token: str) -> None:
            super().__init__(address, token=token)
            self.address = address
            is_open.append(address)

        async def call(self, method: object, request: object, *, timeout_s: float) -> Any:
            await asyncio.sleep(0)
            return self.address

        async def close(self) -> None:
            await asyncio.sleep(0)
            is_open.remove(self.address)

    monkeypatch.setattr(console_database, "Channel", Channel)
    monkeypatch.setattr(console_database, "_CHANNELS_MAX", 2)
    for addresses in ("ab", "a", "cc"):
        await asyncio.gather(*(database.ask_at(each, ClusterService.show, ShowCluster()) for each in addresses))
    assert sorted(is_open) == ["a", "c"]


async def test_visitor_without_login_does_not_act_as_the_certificate_of_the_console(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    tls = authority.server(client_ca=authority.file)
    certificate, key = authority.issue("ops", "client")
    for variable, file in ((CA_VARIABLE, authority.file), (CERT_VARIABLE, certificate), (KEY_VARIABLE, key)):
        monkeypatch.setenv(variable, str(file))
    monkeypatch.setitem(PERMISSIONS, Echo.back.name, ())
    guard = Guard()
    ops = User(name="ops", roles=frozenset({ADMIN}), certificate="ops")
    guard.use_snapshot(AccessSnapshot(users={"ops": ops}, credentials={}, rules=RuleSet(())))
    async with serving(tls=tls, guard=guard) as (asks, _, _), serving(tls=tls) as (open_to_all, _, _):
        async with WireChannel(asks, token="") as of_ops:
            assert (await of_ops.call(Echo.back, ask(b"x"), timeout_s=60)).held == b"x"
        nobody = DatabaseBrokers("notify", [asks])
        with pytest.raises(Unauthenticated):
            await nobody.ask_any(Echo.back, ask(b"x"))
        await nobody.close()
        anybody = DatabaseBrokers("notify", [open_to_all])
        assert (await anybody.ask_any(Echo.back, ask(b"x"))).held == b"x"  # where authentication is off
        await anybody.close()
