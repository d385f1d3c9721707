"""Who is connected, and whom to ask what became of a transaction. Belongs to one loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from uuid import uuid4

from txmsg.client.attach import Presence
from txmsg.client.channel import Brokers
from txmsg.message import ReceivedMessage, TransactionState
from txmsg.rocketmq.codec import delivered_message
from txmsg.rocketmq.v2 import messaging_pb2 as pb

CHECK_S_MAX = 8.0
"""How long a client may take to answer; a broker that is not answered asks again later."""
_COMMANDS_MAX = 64
"""Commands that wait for a client that does not read: further ones are not for it."""


@dataclass(eq=False, slots=True)
class Client:
    """A client, as long as one of its Telemetry streams is open."""

    id: str
    topics: set[str] = field(default_factory=set)
    """That it sends to."""
    transactional: set[str] = field(default_factory=set)
    """Topics that it has sent half messages to."""
    commands: asyncio.Queue[pb.TelemetryCommand] = field(default_factory=lambda: asyncio.Queue(_COMMANDS_MAX))
    unanswered: int = 0


class Clients:
    """Attached to brokers for each topic that a client sends to, and asks these clients what became of transactions."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._clients: dict[str, Client] = {}
        self._presences: dict[str, asyncio.Task[None]] = {}
        self._checks: dict[bytes, asyncio.Future[TransactionState]] = {}

    def attach(self, client: Client) -> None:
        """It is here from now on; another stream of the same client takes the place of the one before."""
        self._clients[client.id] = client

    def detach(self, client: Client) -> bool:
        """Its stream has ended. Nobody is asked about topics that nobody sends to any more.

        Returns whether the client has no other stream.
        """
        has_gone = self._clients.get(client.id) is client
        if has_gone:
            del self._clients[client.id]
        self._end_presences(client.topics)
        return has_gone

    def sends_to(self, client_id: str, topics: Iterable[str], *, halves: bool = False) -> None:
        """A client sends to these topics. One without an open stream cannot be asked, and is not noted."""
        client = self._clients.get(client_id)
        if client is None:
            return
        for topic in topics:
            client.topics.add(topic)
            if halves:
                client.transactional.add(topic)
            if topic not in self._presences:
                listener = _Listener(self, topic)
                presence = Presence(self._brokers, client_id=uuid4().hex, group=topic, listener=listener)
                self._presences[topic] = asyncio.create_task(presence.run(), name=f"rocketmq-attach-{topic}")

    def answer(self, transaction_id: bytes, state: TransactionState) -> None:
        """What a client says of a transaction, whether it was asked or not."""
        asked = self._checks.get(transaction_id)
        if asked is not None and not asked.done():
            asked.set_result(state)

    async def ask(self, topic: str, message: ReceivedMessage) -> TransactionState:
        """Asks a client that sends to the topic; UNKNOWN if none answers in time."""
        able = [client for client in self._clients.values() if topic in client.topics and not client.commands.full()]
        if not able:
            return TransactionState.UNKNOWN
        client = min(able, key=lambda each: (topic not in each.transactional, each.unanswered))
        client.unanswered += 1
        asked = self._checks.setdefault(message.id_bytes, asyncio.get_running_loop().create_future())
        shown = delivered_message(message, None, 0)
        client.commands.put_nowait(
            pb.TelemetryCommand(
                recover_orphaned_transaction_command=pb.RecoverOrphanedTransactionCommand(
                    message=shown, transaction_id=shown.system_properties.message_id
                )
            )
        )
        try:
            async with asyncio.timeout(CHECK_S_MAX):
                state = await asked
        except TimeoutError:
            return TransactionState.UNKNOWN
        finally:
            self._checks.pop(message.id_bytes, None)
        client.unanswered = 0
        return state

    async def close(self) -> None:
        """Is attached no more."""
        for presence in self._presences.values():
            presence.cancel()
        await asyncio.sleep(0)

    def _end_presences(self, topics: set[str]) -> None:
        for topic in topics & self._presences.keys():
            if not any(topic in client.topics for client in self._clients.values()):
                self._presences.pop(topic).cancel()


class _Listener:
    """Answers for the clients that send to one topic."""

    def __init__(self, clients: Clients, topic: str) -> None:
        self._clients = clients
        self._topic = topic

    async def check(self, message: ReceivedMessage) -> TransactionState:
        return await self._clients.ask(self._topic, message)
