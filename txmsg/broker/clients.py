"""The clients that are attached to this broker and can answer check-backs. Knows no protocol."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from uuid import UUID

from txmsg.broker.journal import JournalBuffer
from txmsg.checker.ports import DueHalf
from txmsg.errors import BrokerUnavailable
from txmsg.message import TransactionId, TransactionState

if TYPE_CHECKING:
    from txmsg.tracing import Tracing


@dataclass(slots=True, eq=False)
class AttachedClient:
    """A client process, as long as its Attach stream is open."""

    client_id: str
    producer_group: str
    fences: frozenset[UUID | None]
    """The ids of the fences that it can read, whose checks it can answer; None, too, if it has a listener of its
    own."""
    send_check: Callable[[DueHalf], None]
    consumer_group: str = ""
    host: str = ""
    pid: int = 0
    release: str = ""
    since: datetime = field(default_factory=lambda: datetime.now(UTC))
    unanswered: int = 0
    """The number of checks sent to it since its last answer."""
    asked: dict[TransactionId, asyncio.Future[TransactionState | None]] = field(default_factory=dict)

    @property
    def group(self) -> str:
        """Its consumer group, or else its producer group."""
        return self.consumer_group or self.producer_group

    def answer(self, transaction_id: TransactionId, state: TransactionState) -> None:
        """Take the answer to a check. Late and unsolicited answers are ignored."""
        self.unanswered = 0
        future = self.asked.get(transaction_id)
        if future is not None and not future.done():
            future.set_result(state)


class AttachedClients:
    """The clients attached to this broker. Implements checker.CheckClients. tracing: traces the checks."""

    def __init__(self, journal: JournalBuffer | None = None, *, tracing: Tracing | None = None) -> None:
        self._tracing = tracing
        self._clients: set[AttachedClient] = set()
        self._journal = journal or JournalBuffer()
        self._latest: dict[str, AttachedClient] = {}
        """By client id, the client that attached last."""
        self._asked: dict[bytes, asyncio.Future[TransactionState | None]] = {}

    def __len__(self) -> int:
        return len(self._clients)

    def attach(self, client: AttachedClient) -> None:
        """Send checks to the client from now on."""
        self._clients.add(client)
        self._latest[client.client_id] = client

    def detach(self, client: AttachedClient) -> bool:
        """Remove a client that is gone; its open checks stay unanswered. Idempotent.

        Returns False if it has come back meanwhile, by another connection.
        """
        self._clients.discard(client)
        for future in client.asked.values():
            if not future.done():
                future.set_exception(BrokerUnavailable(f"client {client.client_id} went away before it answered"))
        # A client that reconnects may attach before its old connection ends, whose end must not end its presence.
        if self._latest.get(client.client_id) is not client:
            return False
        del self._latest[client.client_id]
        return True

    def all(self) -> Sequence[AttachedClient]:
        """Return all clients, by group, host and process."""
        return sorted(self._clients, key=lambda client: (client.group, client.host, client.pid, client.client_id))

    def able(self, group: str, fence_id: UUID | None) -> int:
        """Return the number of clients that can answer a check of this producer group and fence."""
        return len(self._able(group, fence_id))

    def _able(self, group: str, fence_id: UUID | None) -> list[AttachedClient]:
        return [client for client in self._clients if client.producer_group == group and fence_id in client.fences]

    def askable(self) -> Sequence[tuple[str, UUID | None]]:
        """Return (producer group, fence id) of all checks that a client can answer now."""
        return list({(client.producer_group, fence) for client in self._clients for fence in client.fences})

    def decided(self, transaction_ids: Iterable[bytes]) -> None:
        """End open checks of transactions that have an outcome: their answers are not needed any more."""
        if not self._asked:
            return
        for id_bytes in transaction_ids:
            future = self._asked.get(id_bytes)
            if future is not None and not future.done():
                future.set_result(None)

    async def ask_client(self, half: DueHalf) -> TransactionState | None:
        """Ask a client that can answer, chosen at random. None: the transaction was decided meanwhile.

        Raises BrokerUnavailable if no client can answer.
        """
        if self._tracing is None:
            return await self._ask_client(half)
        with self._tracing.checking(half.group, half.message, half.checks) as span:
            if span is None:
                return await self._ask_client(half)
            state = await self._ask_client(replace(half, trace=span.traceparent))
            if state is not None:
                span.answered(state)
            return state

    async def _ask_client(self, half: DueHalf) -> TransactionState | None:
        able = self._able(half.group, half.fence_id)
        if not able:
            raise BrokerUnavailable(f"no client of group {half.group!r} is attached that can answer")
        fewest = min(client.unanswered for client in able)  # one that never answers is asked last
        # At random among the others, so that the processes of a group share the checks.
        client = random.choice([client for client in able if client.unanswered == fewest])
        client.unanswered += 1
        future = client.asked.get(half.transaction_id)
        if future is None:
            future = client.asked[half.transaction_id] = asyncio.get_running_loop().create_future()
        self._asked[half.transaction_id.bytes] = future
        answer, asked_at = "no answer", self._journal.now()
        try:
            client.send_check(half)
            state = await future
            answer = "decided meanwhile" if state is None else state.name
            return state
        finally:
            client.asked.pop(half.transaction_id, None)
            if self._asked.get(half.transaction_id.bytes) is future:
                del self._asked[half.transaction_id.bytes]
            self._journal.note_check(
                half.message.topic,
                half.transaction_id,
                asked_at,
                group=half.group,
                by=client.client_id,
                attempt=half.checks,
                answer=answer,
            )
