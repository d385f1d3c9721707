"""Answers to consumers for messages of a silent broker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Any

import pytest

from tests.answered_brokers import AnsweredBrokers
from txmsg.errors import BrokerUnavailable, TxmsgError
from txmsg.rocketmq.filters import ALL
from txmsg.rocketmq.ids import Handle
from txmsg.rocketmq.receivers import ClientSubscription, Receivers
from txmsg.rocketmq.status import OK, CallRefused, status_of
from txmsg.rocketmq.tasks import Tasks
from txmsg.rocketmq.v2 import messaging_pb2 as pb
from txmsg.wire.method import Method
from txmsg.wire.v1.txmsg_pb2 import RouteChanged, RouteReply
from txmsg.wire.v1.txmsg_rpc import Notify

_MEMBER = ClientSubscription("mail", "client-1", "orders")


class SilentBrokers(AnsweredBrokers):
    """Silent brokers. Of those that a client calls without a name, one may tell which brokers exist."""

    said: RouteReply | None = None

    async def answer(self, address: str, method: Method[Any, Any], request: object) -> RouteReply:
        if method is not Notify.route or self.said is None:
            raise BrokerUnavailable(f"{address} does not answer")
        return self.said


@pytest.fixture
async def away() -> AsyncIterator[SilentBrokers]:
    brokers = SilentBrokers(["localhost:1", "localhost:2"])
    brokers.learn("localhost:1", RouteChanged(this="a:1", brokers=["a:1", "b:1"]))
    yield brokers
    await brokers.close()


async def _code(call: Awaitable[object]) -> pb.Code:
    """Return the code that a client gets."""
    try:
        late = await call
    except (CallRefused, TxmsgError) as exc:
        return status_of(exc).code
    return pb.INVALID_RECEIPT_HANDLE if late else OK.code


@pytest.mark.parametrize(
    ("broker", "said", "has_gone"),
    [
        ("a:1", ["b:1"], True),
        ("a:1", ["a:1", "b:1"], False),
        ("a:1", [], False),
        ("a:1", None, False),
        ("c:1", ["b:1"], True),
        ("c:1", None, False),
        ("localhost:1", ["b:1"], True),
        ("localhost:2", ["b:1"], False),  # its name is unknown: it may be b:1
    ],
)
async def test_messages_of_a_permanently_removed_broker_cannot_be_settled(
    away: SilentBrokers, broker: str, said: Sequence[str] | None, has_gone: bool
) -> None:
    away.said = None if said is None else RouteReply(brokers=said)
    receivers, handle = Receivers(away, Tasks()), Handle(broker, 1, 1, 1, 1, is_renewed=True)
    told = [
        await _code(receivers.acknowledge(_MEMBER, [handle])),
        await _code(receivers.refuse(_MEMBER, handle, "no", delay_s=1)),
        await _code(receivers.bury(_MEMBER, handle, "no")),
        await _code(receivers.set_invisible(_MEMBER, handle, 30)),
    ]
    assert set(told) == {pb.INVALID_RECEIPT_HANDLE if has_gone else pb.HA_NOT_AVAILABLE}
    how: Any = {"count": 1, "wait_s": 0, "invisible_s": 30, "renews": True}
    assert await _code(receivers.receive(_MEMBER, broker, ALL, **how)) == pb.HA_NOT_AVAILABLE


async def test_a_cut_off_broker_does_not_decide_which_brokers_are_removed(away: SilentBrokers) -> None:
    away.said = RouteReply(brokers=["b:1"], is_cut_off=True)
    receivers, handle = Receivers(away, Tasks()), Handle("a:1", 1, 1, 1, 1, is_renewed=True)
    assert await _code(receivers.acknowledge(_MEMBER, [handle])) == pb.HA_NOT_AVAILABLE
