"""Permissions and rates of the messages of a request: producers join the sends of all callers, to several topics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

import pytest

from tests.closed_pool import ClosedService, closed_pool
from txmsg.broker.api.notify import BrokerRoutes, NotifyApi
from txmsg.broker.clients import AttachedClients
from txmsg.broker.erasable import ErasableBodies
from txmsg.broker.incarnation import Incarnation
from txmsg.broker.service import Problems
from txmsg.broker.store.body_keys import BodyKeyStore
from txmsg.broker.store.halves import HalfMessages
from txmsg.errors import PermissionDenied, TxmsgError
from txmsg.message.columns import Columns
from txmsg.wire.access.limits import NO_LIMITS, Usage
from txmsg.wire.access.principal import Principal
from txmsg.wire.access.rules import Rights, parse_rule
from txmsg.wire.caller import Caller, answering
from txmsg.wire.v1 import txmsg_pb2 as pb


class RecordingService(ClosedService):
    """Accepts all messages except those that the test refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.stored_in: list[str] = []

    async def store_messages(
        self,
        *,
        group: str,
        fence_id: bytes,
        half: bool,
        batches: Sequence[tuple[str, Columns]],
        denied: Mapping[str, TxmsgError] = {},
    ) -> Problems:
        self.stored_in += [topic for topic, _ in batches if topic not in denied]
        return {batch.transaction_id[0]: denied[topic] for topic, batch in batches if topic in denied}


class NoOtherBroker(BrokerRoutes):
    """The route of a single broker that accepts messages."""

    address = ""
    is_draining = is_cut_off = False

    def addresses(self) -> Sequence[str]:
        return []

    def draining(self) -> Sequence[str]:
        return []

    async def changed(self) -> None:
        await asyncio.Event().wait()


class WaitingUsage(Usage):
    """Rates at which messages wait until an event."""

    def __init__(self, happens: Callable[[], None]) -> None:
        super().__init__("anna", NO_LIMITS)
        self._happens = happens

    async def messages(self, count: int) -> None:
        self._happens()


class UserSend:
    """A call of a user whose rules may be revoked while its messages wait for their rate."""

    def __init__(self, *rules: str) -> None:
        self.caller = Caller("anna", "peer")
        self.usage: Usage = Usage("anna", NO_LIMITS)
        self.allow(*rules)

    def allow(self, *rules: str) -> None:
        rights = Rights(parse_rule("anna", *rule.split()) for rule in rules)
        self.principal = Principal("anna", frozenset(), rights, "")

    def taken_away_while_it_waits(self, *left: str) -> None:
        self.usage = WaitingUsage(lambda: self.allow(*left))


async def send(sending: UserSend, *topics: str, half: bool = False) -> tuple[RecordingService, pb.SendReply]:
    stored, pool, incarnation = RecordingService(), closed_pool(), Incarnation()
    incarnation.shard = UUID(int=1)
    delivery: Any = None
    scheduled: Any = None
    api = NotifyApi(
        stored,
        delivery,
        HalfMessages(pool),
        AttachedClients(),
        scheduled,
        bodies=ErasableBodies(BodyKeyStore(pool)),
        routes=NoOtherBroker(),
        incarnation=incarnation,
        stopping=asyncio.Event(),
    )
    batches = [
        pb.MessageColumns(topic=topic, transaction_id=bytes([place] * 16), body=[b""])
        for place, topic in enumerate(topics)
    ]
    answering.set(sending)
    return stored, await api.send(pb.SendRequest(group="shop", half=half, batches=batches))


def refused(reply: pb.SendReply) -> list[tuple[bytes, str]]:
    return [(error.transaction_id, error.code) for error in reply.errors]


async def test_messages_to_forbidden_topics_are_refused_and_others_of_the_request_stored() -> None:
    stored, reply = await send(UserSend("send topic:orders"), "bills", "orders", "leads")
    assert stored.stored_in == ["orders"]
    assert refused(reply) == [(bytes([0] * 16), "permission_denied"), (bytes([2] * 16), "permission_denied")]
    assert "anna may not send topic:leads" in reply.errors[1].text


async def test_a_rule_revoked_while_messages_wait_for_their_rate_applies() -> None:
    sending = UserSend("send topic:orders", "send topic:bills")
    sending.taken_away_while_it_waits("send topic:bills")
    stored, reply = await send(sending, "orders", "bills")
    assert stored.stored_in == ["bills"]
    assert refused(reply) == [(bytes(16), "permission_denied")]
    sending = UserSend("send topic:orders", "send group:shop")
    sending.taken_away_while_it_waits("send topic:orders")
    with pytest.raises(PermissionDenied, match="send group:shop"):
        await send(sending, "orders", half=True)
