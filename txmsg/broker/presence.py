"""Who is attached to this broker and can answer check-backs. Implements checker.Clients; knows no gRPC."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from txmsg.checker.ports import DueHalf
from txmsg.errors import BrokerUnavailable
from txmsg.message import TransactionId, TransactionState

__all__ = ["AttachedClient", "Presence"]


@dataclass(slots=True, eq=False)
class AttachedClient:
    """A client process, as long as its Attach stream is open.

    fences: what it can answer checks of: the ids of fences it can read, and None when it has a listener of its own.
    """

    client_id: str
    producer_group: str
    fences: frozenset[UUID | None]
    send_check: Callable[[DueHalf], None]
    unanswered: int = 0
    """How often it was asked since it answered last."""
    asked: dict[TransactionId, asyncio.Future[TransactionState]] = field(default_factory=dict)

    def answer(self, transaction_id: TransactionId, state: TransactionState) -> None:
        """A check came back. Late answers, and answers to what was not asked, are passed over."""
        self.unanswered = 0
        future = self.asked.get(transaction_id)
        if future is not None and not future.done():
            future.set_result(state)


class Presence:
    """The attached clients."""

    def __init__(self) -> None:
        self._clients: set[AttachedClient] = set()

    def attach(self, client: AttachedClient) -> None:
        """From now on the client is asked."""
        self._clients.add(client)

    def detach(self, client: AttachedClient) -> None:
        """The client is gone; what it was asked stays unanswered. Doing so twice is fine."""
        self._clients.discard(client)
        for future in client.asked.values():
            if not future.done():
                future.set_exception(BrokerUnavailable(f"client {client.client_id} went away before it answered"))

    def askable(self) -> Sequence[tuple[str, UUID | None]]:
        """Producer group and fence id of everything that can be asked now."""
        return list({(client.producer_group, fence) for client in self._clients for fence in client.fences})

    async def ask(self, half: DueHalf) -> TransactionState:
        """Asks one of the clients that can answer, chosen at random. Raises BrokerUnavailable when there is none."""
        able = [c for c in self._clients if c.producer_group == half.group and half.fence_id in c.fences]
        if not able:
            raise BrokerUnavailable(f"no client of group {half.group!r} is attached that can answer")
        fewest = min(each.unanswered for each in able)  # one that never answers is asked last
        client = random.choice([each for each in able if each.unanswered == fewest])
        client.unanswered += 1
        future = client.asked.get(half.transaction_id)
        if future is None:
            future = client.asked[half.transaction_id] = asyncio.get_running_loop().create_future()
        try:
            client.send_check(half)
            return await future
        finally:
            client.asked.pop(half.transaction_id, None)
