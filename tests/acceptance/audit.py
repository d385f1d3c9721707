"""A member of a consumer group at each broker that records every receipt: which broker delivered it in which epoch."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import NamedTuple, Self

from txmsg.errors import TxmsgError
from txmsg.wire.blocking import BlockingChannel
from txmsg.wire.v1 import txmsg_pb2 as pb
from txmsg.wire.v1.txmsg_rpc import Notify

_POLL_WAIT_MS = 300
_CALL_S_MAX = 10.0
_PAUSE_S = 0.1
_END_S_MAX = 30.0


class Arrival(NamedTuple):
    """A message of a reply."""

    broker: str
    queue_id: int
    epoch: int
    offset: int
    transaction_id: bytes


class Audit:
    """Receives a topic from all of these brokers, whichever are available; a context manager.

    Arrivals stand in the order in which they came, and what was acknowledged is acknowledged for good.
    """

    def __init__(self, addresses: Sequence[str], topic: str, *, group: str = "audit") -> None:
        self.arrivals: list[Arrival] = []
        self.acknowledged: set[tuple[int, int]] = set()
        self.again: list[Arrival] = []
        """Arrivals after the acknowledgement of their message was accepted."""
        self.stale: list[Arrival] = []
        """Arrivals with an outdated epoch, although a newer one was seen before the request."""
        self._youngest: dict[int, int] = {}  # epoch by queue
        self._topic = topic
        self._group = group
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._failures: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._run, args=(address,), name=f"audit-{address}") for address in addresses
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(_END_S_MAX)
        if value is None:
            assert not any(thread.is_alive() for thread in self._threads), "the audit does not end"
            assert not self._failures, self._failures

    def brokers(self) -> dict[int, dict[int, set[str]]]:
        """Return, by queue and epoch, the broker that delivered in it; in order of epochs."""
        found: defaultdict[int, dict[int, set[str]]] = defaultdict(dict)
        for each in sorted(self.arrivals, key=lambda arrival: arrival.epoch):
            found[each.queue_id].setdefault(each.epoch, set()).add(each.broker)
        return dict(found)

    def _run(self, address: str) -> None:
        try:
            with BlockingChannel(address) as channel:
                self._poll(address, channel)
        except BaseException as exc:  # noqa: BLE001 - a thread's root: raised at the end
            self._failures.append(exc)

    def _poll(self, address: str, channel: BlockingChannel) -> None:
        acks: list[pb.Receipt] = []
        while not self._stop.is_set() or acks:
            request = pb.ReceiveRequest(
                group=self._group,
                client_id=f"audit-{address}",
                subscriptions=[pb.Subscription(topic=self._topic, tags="*")],
                max_messages=0 if self._stop.is_set() else 100,
                wait_ms=_POLL_WAIT_MS,
                visibility_timeout_ms=60_000,
                acks=acks,
            )
            with self._lock:
                youngest = dict(self._youngest)
            try:
                reply = channel.call(Notify.receive, request, timeout_s=_CALL_S_MAX)
            except TxmsgError:  # it is down, or delivers nothing now: another delivers its messages
                acks = []
                self._stop.wait(_PAUSE_S)
                continue
            self._note(address, reply, acks, youngest)
            acks = [batch.receipt for batch in reply.batches]

    def _note(
        self, address: str, reply: pb.ReceiveReply, acks: Sequence[pb.Receipt], youngest: Mapping[int, int]
    ) -> None:
        """Record a reply. youngest: the highest epochs seen when the request was made."""
        expired = {(each.queue_id, offset) for each in reply.expired for offset in each.offset}
        with self._lock:
            self.acknowledged |= {(ack.queue_id, offset) for ack in acks for offset in ack.offset} - expired
            for batch in reply.batches:
                ids = batch.transaction_id
                for n, offset in enumerate(batch.receipt.offset):
                    queue_id, epoch = batch.receipt.queue_id, batch.receipt.epoch
                    arrival = Arrival(address, queue_id, epoch, offset, ids[16 * n : 16 * n + 16])
                    self.arrivals.append(arrival)
                    self._youngest[queue_id] = max(epoch, self._youngest.get(queue_id, 0))
                    if epoch < youngest.get(queue_id, 0):
                        self.stale.append(arrival)
                    if (queue_id, offset) in self.acknowledged:
                        self.again.append(arrival)
