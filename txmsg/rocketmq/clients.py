"""The connected clients, and the choice of one to ask for a transaction's outcome. Belongs to one loop."""

from __future__ import annotations

import asyncio
import enum
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from uuid import uuid4

from txmsg.client.attach import AttachedStreams
from txmsg.client.channel import Brokers
from txmsg.message import ReceivedMessage, TransactionState
from txmsg.rocketmq.codec import delivered_message
from txmsg.rocketmq.tasks import Tasks
from txmsg.rocketmq.v2 import messaging_pb2 as pb

CHECK_S_MAX = 8.0
"""Seconds that a client has to answer; a broker that gets no answer checks again later."""
TOPICS_MAX = 256
"""Maximum topics that a client can be asked about: of more, those named or sent to last."""
_COMMANDS_MAX = 64
"""Maximum commands that wait for a client that does not read; others are then asked instead."""


class Sends(enum.Enum):
    """The kinds of messages that a client has sent to a topic that it declares.

    A client that sends only plain messages cannot answer checks. A client that has sent nothing may be able to: it may
    have replaced a producer that died.
    """

    NOTHING = enum.auto()
    PLAIN = enum.auto()
    HALVES = enum.auto()


@dataclass(eq=False, slots=True)
class GatewayClient:
    """A client with an open Telemetry stream."""

    id: str
    may_be_asked: Callable[[str], bool] = field(default=lambda _: True, repr=False)
    """True if it may be asked about transactions of this topic now: it is then shown the message."""
    topics: dict[str, Sends] = field(default_factory=dict)
    """The topics that it names or sends to; at most TOPICS_MAX."""
    commands: asyncio.Queue[pb.TelemetryCommand] = field(default_factory=lambda: asyncio.Queue(_COMMANDS_MAX))
    unanswered: int = 0
    """The number of checks since it last ended a transaction."""

    def can_answer(self, topic: str) -> bool:
        """Return True if it can be asked about transactions of this topic."""
        return self.topics.get(topic, Sends.PLAIN) is not Sends.PLAIN and self.may_be_asked(topic)


class GatewayClients:
    """The clients of a gateway. Attaches to brokers for topics that a client can be asked about, and
    forwards checks.
    """

    def __init__(self, brokers: Brokers, tasks: Tasks) -> None:
        self._brokers = brokers
        self._tasks = tasks
        self._clients: dict[str, GatewayClient] = {}
        self._presences: dict[str, asyncio.Task[None]] = {}
        self._checks: defaultdict[tuple[str, bytes], set[asyncio.Future[TransactionState]]] = defaultdict(set)
        """Waiting checks by topic and transaction id, so that a right to end transactions of one topic decides no
        other."""

    @property
    def count(self) -> int:
        """The number of connected clients."""
        return len(self._clients)

    @property
    def attached(self) -> set[str]:
        """The topics for which brokers may send checks to this gateway."""
        return {topic for topic, presence in self._presences.items() if not presence.done()}

    def attach(self, client: GatewayClient) -> None:
        """Add a client; a new stream of the same client replaces its previous one."""
        before = self._clients.get(client.id)
        if before is not None:
            client.topics = dict(before.topics)
        self._clients[client.id] = client

    def detach(self, client: GatewayClient) -> None:
        """Remove a client whose stream has ended. Detaches from topics that no other client can be asked about."""
        if self._clients.get(client.id) is client:
            del self._clients[client.id]
        self._follow(client.topics)

    def names(self, client_id: str, topics: Iterable[str]) -> None:
        """Note that a client sends to these topics. Ignored for clients without an open stream, which
        cannot be asked.
        """
        for topic in topics:
            self._note(client_id, topic, Sends.NOTHING)

    def has_sent(self, client_id: str, topic: str, *, half: bool) -> None:
        """Note that a message of this client is stored."""
        self._note(client_id, topic, Sends.HALVES if half else Sends.PLAIN)

    def _note(self, client_id: str, topic: str, sends: Sends) -> None:
        client = self._clients.get(client_id)
        if client is None:
            return
        known = client.topics.get(topic)
        if known is sends or known is Sends.HALVES or (known is Sends.PLAIN and sends is Sends.NOTHING):
            return
        if known is None and sends is Sends.PLAIN:  # it cannot answer, and need not take the place of another topic
            return
        dropped = []
        if known is None and len(client.topics) >= TOPICS_MAX:
            dropped.append(next(iter(client.topics)))
            del client.topics[dropped[0]]
        client.topics[topic] = sends
        self._follow([topic, *dropped])

    def _follow(self, topics: Iterable[str]) -> None:
        """Attach for those of these topics that a client can be asked about, and detach from the others."""
        for topic in topics:
            self._attach(topic, any(client.can_answer(topic) for client in self._clients.values()))

    def look_again(self) -> None:
        """Attach and detach after rules have changed: other clients may be allowed to answer now."""
        able = {topic for client in self._clients.values() for topic in client.topics if client.can_answer(topic)}
        for topic in able | self._presences.keys():
            self._attach(topic, topic in able)

    def _attach(self, topic: str, is_wanted: bool) -> None:
        presence = self._presences.get(topic)
        is_attached = presence is not None and not presence.done()
        if is_attached == is_wanted:
            return
        if is_wanted:
            attached = AttachedStreams(
                self._brokers, client_id=uuid4().hex, group=topic, listener=_Listener(self, topic)
            )
            self._presences[topic] = self._tasks.start(attached.run(), name=f"rocketmq-attach-{topic}")
        else:
            self._presences.pop(topic).cancel()

    def ended(self, client_id: str, topic: str, transaction_id: bytes, state: TransactionState) -> None:
        """Note a client's outcome of a transaction of this topic, whether the client was asked or not."""
        client = self._clients.get(client_id)
        if client is not None:
            client.unanswered = 0
        for asked in self._checks.pop((topic, transaction_id), ()):
            if not asked.done():
                asked.set_result(state)

    async def ask_client(self, topic: str, message: ReceivedMessage) -> TransactionState:
        """Ask a client, preferably one that has sent halves to the topic; UNKNOWN if it does not answer in time.

        Clients with more than one unanswered check come last, those with the fewest first.
        """
        able = [client for client in self._clients.values() if client.can_answer(topic) and not client.commands.full()]
        if not able:
            return TransactionState.UNKNOWN
        client = min(able, key=lambda each: _rank(each, topic))
        # Counted before the answer, so that checks which run at the same time avoid a client that hangs.
        client.unanswered += 1
        asked: asyncio.Future[TransactionState] = asyncio.get_running_loop().create_future()
        check = message.topic, message.id_bytes
        self._checks[check].add(asked)  # brokers may ask twice at once, and one of them for longer
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
                return await asked
        except TimeoutError:
            return TransactionState.UNKNOWN
        finally:
            self._checks[check].discard(asked)
            if not self._checks[check]:
                del self._checks[check]


def _rank(client: GatewayClient, topic: str) -> tuple[int, bool, int]:
    """Return the rank for being asked; the lowest is. Clients that hang come last, whatever they have sent."""
    return max(client.unanswered, 1), client.topics[topic] is not Sends.HALVES, client.unanswered


class _Listener:
    """Answers checks for the clients that send to one topic."""

    def __init__(self, clients: GatewayClients, topic: str) -> None:
        self._clients = clients
        self._topic = topic

    async def check(self, message: ReceivedMessage) -> TransactionState:
        return await self._clients.ask_client(self._topic, message)
