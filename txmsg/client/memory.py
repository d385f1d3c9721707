"""The broker of "memory:": keeps in this process what it sends, for tests and development without a server.

It stands behind the channels of clients, so all above them (flows, fences, batches of requests, check-backs) is as with
a broker. Nothing is delivered: `txmsg.testing.Memory` hands on what was sent. Nothing outlives the process.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from txmsg.errors import MisuseError, OutcomeConflict, OutcomeExpired, TxmsgError
from txmsg.message import ReceivedMessage, now_us
from txmsg.message.columns import Columns
from txmsg.runtime.forks import renew_in_children
from txmsg.wire.brokers import MEMORY
from txmsg.wire.codec import pack_headers, slices_of_ids, unpack_headers
from txmsg.wire.columns import columns_of
from txmsg.wire.method import Method, ReplyT, RequestT
from txmsg.wire.v1 import txmsg_pb2 as pb
from txmsg.wire.v1.txmsg_rpc import Notify

_SHARD: Final = b"txmsg in memory."
"""The id of its Notify database."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredTransaction:
    """The messages of one transaction, or of one plain send. delayed: the places of those that are to come later."""

    group: str
    messages: Sequence[ReceivedMessage]
    delayed: frozenset[int]


class MemoryBroker:
    """The messages sent to "memory:" in this process. For any thread. A forked child begins with none."""

    def __init__(self) -> None:
        self._renew()
        renew_in_children(self)

    def _renew(self) -> None:
        self._lock = threading.Lock()
        self._streams: set[MemoryStream] = set()
        self._forget()

    def _forget(self) -> None:
        self._halves: dict[bytes, _StoredTransaction] = {}
        self._ended: dict[bytes, bool] = {}
        """True for committed transactions, False for those rolled back."""
        self._sent: list[ReceivedMessage] = []
        self._delayed: set[tuple[bytes, int]] = set()

    # ---- for tests

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._forget()

    def sent(self) -> list[ReceivedMessage]:
        """Return the committed messages, in the order of their commits. offset: the place in it."""
        with self._lock:
            return [message._replace(offset=offset) for offset, message in enumerate(self._sent)]

    def undecided(self) -> list[ReceivedMessage]:
        """Return the half messages without an outcome."""
        with self._lock:
            return [message for stored in self._halves.values() for message in stored.messages]

    # ---- for clients

    def answer(self, method: Method[RequestT, ReplyT], request: RequestT) -> ReplyT:
        """Return the reply to a call. Raises MisuseError for methods that need a broker."""
        answer = self._ANSWERS.get(method.name)
        if answer is None:
            raise MisuseError(
                f"{method.name} needs a broker, and {MEMORY!r} is none: start one with `txmsg up`, and name its address"
            )
        with self._lock:
            return cast(ReplyT, answer(self, request))

    def _store_messages(self, request: pb.SendRequest) -> pb.SendReply:
        for id_bytes, of_transaction in _stored(request).items():
            # Ids are remembered after their end, as a broker does: a retried request must not store its messages again.
            if id_bytes in self._halves or id_bytes in self._ended:
                continue  # a repeat
            if request.half:
                self._halves[id_bytes] = of_transaction
            else:
                self._commit(id_bytes, of_transaction)
        return pb.SendReply(shard=_SHARD)

    def _commit(self, id_bytes: bytes, stored: _StoredTransaction) -> None:
        self._ended[id_bytes] = True
        for message in stored.messages:
            if message.n in stored.delayed:
                self._delayed.add((id_bytes, message.n))
            self._sent.append(message._replace(stored_at_us=now_us()))

    def _end_transactions(self, request: pb.EndTransactionsRequest) -> pb.EndTransactionsReply:
        errors: list[pb.ItemError] = []
        for id_bytes in slices_of_ids(request.commit):
            errors += self._ended_with(request.group, id_bytes, is_commit=True)
        for id_bytes in slices_of_ids(request.rollback):
            errors += self._ended_with(request.group, id_bytes, is_commit=False)
        for id_bytes in slices_of_ids(request.unknown):
            if (stored := self._halves.get(id_bytes)) is not None:
                self._check(id_bytes, stored)
        return pb.EndTransactionsReply(errors=errors)

    def _ended_with(self, group: str, id_bytes: bytes, *, is_commit: bool) -> Iterator[pb.ItemError]:
        before = self._ended.get(id_bytes)
        stored = self._halves.get(id_bytes)
        if before is not None:
            if before is not is_commit:
                yield _error(id_bytes, OutcomeConflict("its transaction has the other outcome"))
        elif stored is None or (group and stored.group != group):
            yield _error(id_bytes, OutcomeExpired("nothing is known of its transaction"))
        else:
            del self._halves[id_bytes]
            if is_commit:
                self._commit(id_bytes, stored)
            else:
                self._ended[id_bytes] = False

    def _check(self, id_bytes: bytes, stored: _StoredTransaction) -> None:
        """Ask a client of the group, if one is there."""
        first = stored.messages[0]
        check = pb.Check(
            shard=_SHARD,
            attempt=1,
            transaction_id=id_bytes,
            topic=first.topic,
            body=first.body,
            key=first.key or "",
            tag=first.tag or "",
            headers=pack_headers(first.headers),
            born_at_us=first.born_at_us,
            stored_at_us=first.stored_at_us,
        )
        for stream in self._streams:
            if stream.group == stored.group:
                stream.put_frame(pb.BrokerFrame(check=check))
                return

    def _recall(self, request: pb.RecallRequest) -> pb.RecallReply:
        ids = slices_of_ids(request.transaction_ids)
        ns = request.n or [0] * len(ids)
        return pb.RecallReply(results=[self._recalled(id_bytes, n) for id_bytes, n in zip(ids, ns, strict=True)])

    def _recalled(self, id_bytes: bytes, n: int) -> pb.RecallReply.Result:
        if id_bytes in self._halves:
            return pb.RecallReply.UNDECIDED
        if (id_bytes, n) not in self._delayed:
            known = any(message.id_bytes == id_bytes and message.n == n for message in self._sent)
            return pb.RecallReply.ENTERED if known else pb.RecallReply.UNKNOWN
        self._sent = [message for message in self._sent if (message.id_bytes, message.n) != (id_bytes, n)]
        return pb.RecallReply.RECALLED

    def _route(self, request: pb.RouteRequest) -> pb.RouteReply:
        return pb.RouteReply(shard=_SHARD, brokers=[MEMORY], this=MEMORY)

    _ANSWERS: Final[Mapping[str, Callable[..., object]]] = {
        Notify.send.name: _store_messages,
        Notify.end_transactions.name: _end_transactions,
        Notify.recall.name: _recall,
        Notify.route.name: _route,
    }

    # ---- presence

    def attach(self, stream: MemoryStream) -> None:
        """Add a client that can be asked."""
        with self._lock:
            self._streams.add(stream)

    def detach(self, stream: MemoryStream) -> None:
        """End `attach`."""
        with self._lock:
            self._streams.discard(stream)

    def answered(self, group: str, answer: pb.CheckAnswer) -> None:
        """Settle a transaction by a client's answer."""
        with self._lock:
            if answer.state != pb.CheckAnswer.UNKNOWN:
                list(self._ended_with(group, answer.transaction_id, is_commit=answer.state == pb.CheckAnswer.COMMIT))


_BROKER: Final = MemoryBroker()


def memory() -> MemoryBroker:
    """Return the MemoryBroker of this process."""
    return _BROKER


class MemoryStream:
    """A client's presence at the MemoryBroker."""

    def __init__(self, broker: MemoryBroker, hello: pb.Hello) -> None:
        self.group = hello.producer_group
        self._broker = broker
        self._loop = asyncio.get_running_loop()
        self._frames: asyncio.Queue[pb.BrokerFrame] = asyncio.Queue()
        broker.attach(self)

    async def send_request(self, request: pb.ClientFrame) -> None:
        """Take an answer to a check."""
        self._broker.answered(self.group, request.check_answer)

    async def receive(self) -> pb.BrokerFrame | None:
        """Return the next check."""
        return await self._frames.get()

    def close(self) -> None:
        """End it. Closing twice is fine."""
        self._broker.detach(self)

    def put_frame(self, frame: pb.BrokerFrame) -> None:
        """Pass a frame to the client. For any thread."""
        self._loop.call_soon_threadsafe(self._frames.put_nowait, frame)


class MemoryChannel:
    """Takes the place of a connection on a client's loop."""

    async def call(self, method: Method[RequestT, ReplyT], request: RequestT, *, timeout_s: float) -> ReplyT:
        """Return the reply."""
        return memory().answer(method, request)

    async def stream(self, method: Method[RequestT, ReplyT], first: RequestT, *, timeout_s: float) -> Any:
        """Return the stream of a client that attaches."""
        assert isinstance(first, pb.ClientFrame), "no other call of a producer is a stream"
        return MemoryStream(memory(), first.hello)

    async def close(self) -> None:
        """There is nothing to close."""


class MemoryBlockingChannel:
    """The same for threads."""

    def call(self, method: Method[RequestT, ReplyT], request: RequestT, *, timeout_s: float) -> ReplyT:
        """Return the reply."""
        return memory().answer(method, request)

    def close(self) -> None:
        """There is nothing to close."""


def _error(id_bytes: bytes, error: TxmsgError) -> pb.ItemError:
    return pb.ItemError(transaction_id=id_bytes, code=error.code, text=str(error))


def _stored(request: pb.SendRequest) -> Mapping[bytes, _StoredTransaction]:
    """Return the messages of a request by transaction."""
    messages: dict[bytes, list[ReceivedMessage]] = {}
    delayed: dict[bytes, set[int]] = {}
    for batch in request.batches:
        columns = columns_of(batch, is_half=request.half)
        columns.fill()
        for message, is_delayed in _messages(batch.topic, columns):
            messages.setdefault(message.id_bytes, []).append(message)
            if is_delayed:
                delayed.setdefault(message.id_bytes, set()).add(message.n)
    return {
        id_bytes: _StoredTransaction(
            group=request.group,
            messages=sorted(of_id, key=lambda message: message.n),
            delayed=frozenset(delayed.get(id_bytes, ())),
        )
        for id_bytes, of_id in messages.items()
    }


def _messages(topic: str, columns: Columns) -> Iterator[tuple[ReceivedMessage, bool]]:
    """Yield each message, and True if it is delayed."""
    for row, id_bytes in enumerate(columns.transaction_id):

        def value(column: Sequence[Any], row: int = row) -> Any:
            return column[row] if column else None

        message = ReceivedMessage(
            topic,
            columns.body[row],
            key=value(columns.key) or None,
            tag=value(columns.tag) or None,
            headers=unpack_headers(value(columns.headers) or b""),
            queue=0,
            id_bytes=id_bytes,
            n=value(columns.n) or 0,
            born_at_us=columns.born_at_us[row],
            ordering_key=value(columns.ordering_key) or None,
        )
        yield message, bool(value(columns.deliver_at_us) or value(columns.deliver_after_us))
