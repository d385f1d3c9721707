"""One consumer's line to one broker: polls for messages, and carries acknowledgements and refusals back.

The broker holds a poll until there is a message. Settlements are sent by calls of their own, a few milliseconds after
the first of them, because a poll would confirm them only when it ends. While handlers run for long, the link extends
the visibility timeout of their messages. Knows no handlers. Belongs to one loop.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from txmsg.client.channel import RETRYABLE, Brokers
from txmsg.client.receiving.epochs import Epochs
from txmsg.client.receiving.held import Hand, Held, hand_of
from txmsg.client.receiving.queues_held import QueuesHeld
from txmsg.client.receiving.received import delivered
from txmsg.client.sending.counts import ConsumerCounts
from txmsg.consumer.failures import Failure
from txmsg.consumer.isolation import isolation
from txmsg.errors import PermissionDenied, ProtocolError, TxmsgError, Unauthenticated
from txmsg.logs import EventLog
from txmsg.message import ReceivedMessage
from txmsg.wire.v1.txmsg_pb2 import Receipt, ReceiveReply, ReceiveRequest, Refusal, Subscription
from txmsg.wire.v1.txmsg_rpc import Notify

_log = EventLog(__name__)

POLL_WAIT_S = 300.0
"""How long the broker holds a poll when there is nothing."""
CALL_GRACE_S = 10.0
FLUSH_DELAY_S = 0.005
PAUSE_S_MAX = 1.0
REFUSED_PAUSE_S_MAX = 10.0
"""When an operator has to act first: each login that fails is noted."""
FAILURES_MAX = 3
"""After so many failures in a row a stop does not wait for the broker to hear what came last: it has probably gone."""
ERROR_TEXT_SIZE_MAX = 4000
SAY_AGAIN_S = 60.0
AHEAD_S = 0.2
"""Messages are fetched ahead for as long as this: many for quick handlers, few for slow ones, who leave the others free
to take them."""
AHEAD_COUNT_MAX = 5000
OUT_SIZE_BYTES_MAX = 64 * 1024 * 1024
"""By default."""
RENEWALS = 4
"""How often within a visibility timeout the broker is told what is still held: all but one of the calls may be lost."""
HELD_COUNT_MAX = 1000
"""Receipts in such a call."""
PACE_INTERVAL_S = 0.1
ISOLATION_LOOK_S = 0.02
"""How often a link looks whether suspects still wait in its process."""
TELL_TIMEOUT_S = 5.0
"""For telling a broker that a suspect begins: nothing else begins meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Polling:
    """What is the same in every poll of a consumer."""

    group: str
    client_id: str
    subscriptions: tuple[Subscription, ...]
    start: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much may be out at once, and for how long the broker leaves it to us. Others may hold later.

    out_min: messages that may be out, at least; more are when they are settled quickly. out_size_bytes_max: of their
    bodies; one message more may be.
    """

    out_min: int
    visibility_timeout_s: float
    out_size_bytes_max: int = OUT_SIZE_BYTES_MAX


def _new_line() -> int:
    return random.getrandbits(63) + 1  # 0 is none


class Link:
    """Polls one broker while `run` runs and `stop` has not been called.

    `take` gets what was delivered, and whoever took it calls `ack`, `refuse` or `drop` exactly once for each message.
    It is also told with how many consumers the messages were lost before, at most.
    """

    def __init__(
        self,
        brokers: Brokers,
        address: str,
        polling: Polling,
        bounds: Bounds,
        take: Callable[[Link, Hand, list[ReceivedMessage], int], None],
        *,
        counts: ConsumerCounts | None = None,
        queues: QueuesHeld | None = None,
        epochs: Epochs | None = None,
    ) -> None:
        self.address = address
        self._counts = counts or ConsumerCounts()
        self._channel = brokers.channel(address)
        self._polling = polling
        self._bounds = bounds
        self._out_max = bounds.out_min
        self._asked_s = bounds.visibility_timeout_s
        """The visibility timeout that the poll under way asks for."""
        self._rebound = asyncio.Event()
        self._take = take
        self._queues, self._epochs = queues or QueuesHeld(), epochs or Epochs()
        self._held = Held(self._queues)
        self._awaited: dict[int, int] = {}
        """Queues by id, and their epochs, that the broker does not deliver until it hears that none of them is held."""
        self._queues.watch(self._queue_free)
        self._settled_count = 0
        self._paced_at = 0.0
        self._room = asyncio.Event()
        self._stopping = asyncio.Event()
        self._is_paused = False
        self._acks: defaultdict[Hand, list[int]] = defaultdict(list)
        self._refusals: list[Refusal] = []
        self._telling: list[Mapping[Hand, list[int]]] = []
        """The acknowledgements in calls under way."""
        self._confirmed: list[Mapping[Hand, list[int]]] = []
        """Those that the broker has heard since the poll under way began, which may bring these messages once more."""
        self._again: defaultdict[tuple[Hand, int], list[Hand]] = defaultdict(list)
        """Later deliveries of messages, by hand and offset, that are held here already: they end together."""
        self._flush_timer: asyncio.TimerHandle | None = None
        self._flushing: asyncio.Task[None] | None = None
        self._line, self._received, self._named_count = _new_line(), 0, 0
        self._pause_told = ""
        self._poll: asyncio.Task[ReceiveReply | None] | None = None
        self._is_in_doubt = False  # whether messages are on their way from a poll that has ended without an answer
        self._failures = 0
        self._is_refused = False
        self._said_at = 0.0
        self._flushed = False

    @property
    def out(self) -> int:
        """Messages received and not settled."""
        return self._held.count

    def use(self, bounds: Bounds) -> None:
        """Applies new bounds. The poll under way has asked by the old ones."""
        self._bounds = bounds
        self._out_max = bounds.out_min
        self._room.set()
        self._rebound.set()

    # ---- settling

    def ack(self, hand: Hand, offset: int) -> None:
        """The message is done."""
        self._acks[hand].append(offset)
        self._settled(hand, offset)
        if self._again:
            for again in self._again.pop((hand, offset), ()):
                self.ack(again, offset)

    def refuse(self, hand: Hand, offset: int, failure: Failure) -> None:
        """The message failed: `failure` says what becomes of it. Its text is shown with it, cut to 4,000 characters."""
        self._refusals.append(
            Refusal(
                receipt=hand.receipt([offset]),
                error=failure.error[:ERROR_TEXT_SIZE_MAX],
                delay_ms=-1 if failure.delay_s is None else round(failure.delay_s * 1000),
                dead=failure.is_final,
                rejected=failure.is_rejected,
            )
        )
        self._settled(hand, offset)
        for again in self._again.pop((hand, offset), ()):
            self.refuse(again, offset, failure)

    def drop(self, hand: Hand, offset: int) -> None:
        """The message is not settled: it is redelivered when its visibility timeout ends."""
        self._drop(hand, offset)
        for again in self._again.pop((hand, offset), ()):
            self._drop(again, offset)

    def holds(self, hand: Hand, offset: int, now: float) -> bool:
        """Whether this message is still reserved for this consumer. Else another one gets it."""
        return self._held.holds(hand, offset, now) or any(
            self._held.holds(again, offset, now) for again in self._again.get((hand, offset), ())
        )

    def _drop(self, hand: Hand, offset: int) -> None:
        self._held.drop(hand, offset)
        self._room.set()

    def _settled(self, hand: Hand, offset: int) -> None:
        self._settled_count += 1
        self._held.drop(hand, offset)
        self._room.set()
        self._flush_later(FLUSH_DELAY_S)

    @property
    def _is_last(self) -> bool:
        """Whether the next call is to say what came last: no poll will say it, or none for long."""
        return self._is_in_doubt and (self._stopping.is_set() or self._is_paused) and self._poll is None

    @property
    def _has_to_tell(self) -> bool:
        return bool(self._acks or self._refusals or self._free()) or self._is_last

    def _flush_later(self, delay_s: float) -> None:
        if self._flush_timer is None and self._flushing is None and not self._flushed:
            self._flush_timer = asyncio.get_running_loop().call_later(delay_s, self._flush_soon)

    def _flush_soon(self) -> None:
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None
        if self._flushing is None and self._has_to_tell:
            self._flushing = asyncio.create_task(self._flush())
            self._flushing.add_done_callback(self._flush_done)

    def _flush_done(self, _: asyncio.Task[None]) -> None:
        self._flushing = None
        if self._has_to_tell:
            self._flush_later(self._pause_s_max if self._failures else FLUSH_DELAY_S)

    async def _flush(self) -> None:
        await self._settle()

    async def flush(self, timeout_s: float) -> None:
        """Settles everything that waits, before the end. What is left after the time is redelivered."""
        try:
            async with asyncio.timeout(timeout_s):
                while self._flushing is not None or (
                    self._has_to_tell and (self._acks or self._refusals or self._failures < FAILURES_MAX)
                ):
                    if self._flushing is not None:
                        await asyncio.wait([self._flushing])
                    elif not await self._settle():
                        await asyncio.sleep(random.uniform(0.05, 0.2))
        except TimeoutError:
            count = sum(map(len, self._acks.values())) + len(self._refusals)
            if count:
                _log.warning(
                    "consumer.settlements_unsent",
                    "%(messages)d settlements did not reach broker %(broker)s: those messages are redelivered",
                    messages=count,
                    broker=self.address,
                )
        finally:
            self._flushed = True
            self._queues.unwatch(self._queue_free)
            if self._flush_timer is not None:
                self._flush_timer.cancel()
            if self._flushing is not None:
                self._flushing.cancel()

    # ---- polling

    def _queue_free(self, queue_id: int) -> None:
        if queue_id in self._awaited:
            self._flush_later(FLUSH_DELAY_S)

    def _free(self) -> list[Receipt]:
        """The awaited queues of which no message is held, whatever broker it came from."""
        return [
            Receipt(queue_id=queue_id, epoch=epoch)
            for queue_id, epoch in self._awaited.items()
            if not self._queues.holds(queue_id)
        ]

    def _hear_awaited(self, awaited: Sequence[Receipt]) -> None:
        """Notes what the broker asks. From now on, deliveries of these queues under lower epochs are refused."""
        now = asyncio.get_running_loop().time()
        self._awaited = {
            receipt.queue_id: receipt.epoch
            for receipt in awaited
            if self._epochs.is_current(receipt.queue_id, receipt.epoch, now)
        }

    async def run(self) -> None:
        """Polls until `stop`. After a failure of the broker it pauses and polls again."""
        while not self._stopping.is_set():
            self._set_pace()
            size_bytes_max = self._bounds.out_size_bytes_max
            room, room_bytes = self._out_max - self._held.count, size_bytes_max - self._held.size_bytes
            if self._is_paused:
                self._flush_soon()
            if isolation.is_wanted:
                await self._wait(ISOLATION_LOOK_S, self._stopping)
                continue
            if self._is_paused or room < max(1, self._out_max // 4) or room_bytes < max(1, size_bytes_max // 4):
                self._room.clear()
                await self._room.wait()
                continue
            reply = await self._next(room, room_bytes)
            if reply is None:
                await self._pause()
                continue
            if reply.pause != self._pause_told:
                self._note_pause(reply.pause)
            for columns in reply.batches:
                receipt = columns.receipt
                self._received = receipt.token
                hand = hand_of(receipt)
                messages, unreadable = delivered(columns)
                self._counts.received += len(messages) + len(unreadable)
                until = asyncio.get_running_loop().time() + self._asked_s
                self._held.add(hand, messages, unreadable.keys(), until)
                for offset, error in unreadable.items():
                    self.refuse(hand, offset, Failure(str(error)))
                if columns.attempt or columns.losses:  # some were delivered before
                    messages = self._unknown(hand, messages)
                if messages:
                    self._take(self, hand, messages, max(columns.losses, default=0))
        self._flush_soon()

    def _unknown(self, hand: Hand, messages: Sequence[ReceivedMessage]) -> list[ReceivedMessage]:
        """Those that are neither held here nor done: the broker may have heard too late of this process.

        As when a handler blocks the loop: it would be called again at once, and again.
        """
        unknown: list[ReceivedMessage] = []
        for message in messages:
            offset = message.offset
            assert offset is not None
            if self._is_acknowledged(hand, offset):
                self.ack(hand, offset)
            elif (earlier := self._held.earlier(hand, offset)) is not None:
                self._again[earlier, offset].append(hand)
            else:
                unknown.append(message)
        return unknown

    def _is_acknowledged(self, hand: Hand, offset: int) -> bool:
        """Whether the broker is told that this message is done, or was since it was asked, for any delivery."""
        return any(
            each.queue_id == hand.queue_id and offset in offsets
            for acks in (self._acks, *self._telling, *self._confirmed)
            for each, offsets in acks.items()
        )

    async def keep(self) -> None:
        """Extends the visibility timeout of messages whose handlers run for long, until cancelled."""
        while True:
            # What the poll under way brings may be left to us for a shorter time than now holds.
            await self._wait(min(self._bounds.visibility_timeout_s, self._asked_s) / RENEWALS, self._rebound)
            self._rebound.clear()
            visibility_timeout_s = self._bounds.visibility_timeout_s
            now = asyncio.get_running_loop().time()
            old = self._held.until_before(now + visibility_timeout_s * (1 - 1 / RENEWALS))
            for start in range(0, len(old), HELD_COUNT_MAX):
                hands = old[start : start + HELD_COUNT_MAX]
                receipts = self._held.receipts(hands)
                if receipts and await self._settle(receipts):
                    self._held.extend(hands, now + visibility_timeout_s)

    async def tell_alone(self, hand: Hand, offset: int, *, is_alone: bool) -> bool:
        """Tells the broker that a message begins, alone in this process, or that others run beside it from now on.

        Returns whether the broker has heard it and the message is still ours.
        """
        request = self._request()
        (request.alone if is_alone else request.joined).append(hand.receipt([offset]))
        reply = await self._call(request, timeout_s=TELL_TIMEOUT_S)
        if reply is not None and reply.expired:
            self._hear_expired(reply.expired)
        return reply is not None and self._held.holds(hand, offset, asyncio.get_running_loop().time())

    async def idle(self) -> None:
        """Returns when all messages are settled."""
        while self._held.count:
            self._room.clear()
            await self._room.wait()

    def _set_pace(self) -> None:
        now = asyncio.get_running_loop().time()
        passed_s = now - self._paced_at
        if passed_s >= PACE_INTERVAL_S:
            ahead = round(self._settled_count / passed_s * AHEAD_S)
            self._out_max = max(self._bounds.out_min, min(ahead, AHEAD_COUNT_MAX))
            self._settled_count, self._paced_at = 0, now

    def pause(self) -> None:
        """Ends the poll under way and begins no other until `resume`. Messages on their way return to the group."""
        self._is_paused = True
        if self._poll is not None:
            self._poll.cancel()

    def resume(self) -> None:
        """The end of `pause`."""
        self._is_paused = False
        self._room.set()

    def stop(self) -> None:
        """Ends the poll under way and begins no other. Messages on their way return to the group."""
        self._stopping.set()
        self._room.set()
        if self._poll is not None:
            self._poll.cancel()

    @property
    def _pause_s_max(self) -> float:
        return REFUSED_PAUSE_S_MAX if self._is_refused else PAUSE_S_MAX

    async def _pause(self) -> None:
        longest_s = min(self._pause_s_max, 0.1 * 2 ** min(self._failures, 8))
        await self._wait(random.uniform(0.05, longest_s), self._stopping)

    def _note_pause(self, why: str) -> None:
        self._pause_told = why
        if why:
            _log.warning(
                "consumer.paused",
                "group %(group)s is paused at broker %(broker)s: %(reason)s",
                group=self._polling.group,
                broker=self.address,
                reason=why,
            )
        else:
            _log.info(
                "consumer.resumed",
                "group %(group)s is no longer paused at broker %(broker)s",
                group=self._polling.group,
                broker=self.address,
            )

    @staticmethod
    async def _wait(time_s: float, for_event: asyncio.Event) -> None:
        """Returns when the time is over, or the event is there."""
        with suppress(TimeoutError):
            async with asyncio.timeout(time_s):
                await for_event.wait()

    def _log_failure(self, error: TxmsgError) -> None:
        """Logs the first failure of an outage only; what an operator must correct, once a minute."""
        level = logging.WARNING if isinstance(error, RETRYABLE) else logging.ERROR
        now = asyncio.get_running_loop().time()
        if self._failures > 1 and (level == logging.WARNING or now < self._said_at + SAY_AGAIN_S):
            level = logging.DEBUG
        else:
            self._said_at = now
        _log.log(
            level,
            "consumer.receive_failed",
            "group %(group)s gets nothing from broker %(broker)s: %(error)s",
            group=self._polling.group,
            broker=self.address,
            error=error,
        )

    async def _next(self, room: int, room_bytes: int) -> ReceiveReply | None:
        """Polls for up to so many messages and bytes. None after a failure, and when `stop` was called."""
        request = self._request()
        request.max_messages, request.max_bytes = room, room_bytes
        self._asked_s = self._bounds.visibility_timeout_s
        request.wait_ms = int(POLL_WAIT_S * 1000)
        self._name_line(request)
        if not self._is_in_doubt:
            self._confirmed.clear()
        self._is_in_doubt = True
        poll = self._poll = asyncio.create_task(self._call(request, timeout_s=POLL_WAIT_S + CALL_GRACE_S))
        try:
            reply = await poll
        except asyncio.CancelledError:
            task = asyncio.current_task()
            assert task is not None
            if task.cancelling():  # this one, not only the poll
                raise
            reply = None
        finally:
            self._poll = None
        self._is_in_doubt = reply is None
        return reply

    async def _settle(self, held: Sequence[Receipt] = ()) -> bool:
        """Sends all settlements that wait. False after a failure: they wait again."""
        acks, self._acks = self._acks, defaultdict(list)
        refusals, self._refusals = self._refusals, []
        request = self._request()
        request.acks.extend(hand.receipt(offsets) for hand, offsets in acks.items())
        request.refusals.extend(refusals)
        request.held.extend(held)
        is_last = self._is_last
        if is_last:
            self._is_in_doubt = False
            self._name_line(request)
        reply = None
        self._telling.append(acks)
        try:
            reply = await self._call(request, timeout_s=CALL_GRACE_S)
        finally:
            self._telling.remove(acks)
            if reply is None:
                for hand, offsets in acks.items():
                    self._acks[hand] += offsets
                self._refusals[:0] = refusals
                self._is_in_doubt |= is_last
                if self._has_to_tell:
                    self._flush_later(self._pause_s_max)
        if reply is not None:
            if acks and self._is_in_doubt:
                self._confirmed.append(acks)
            self._counts.acknowledged += sum(map(len, acks.values()))
            self._counts.refused += len(refusals)
        if reply is not None and reply.expired:
            self._hear_expired(reply.expired)
        return reply is not None

    def _request(self) -> ReceiveRequest:
        return ReceiveRequest(
            free=self._free() if self._awaited else None,
            group=self._polling.group,
            client_id=self._polling.client_id,
            subscriptions=self._polling.subscriptions,
            visibility_timeout_ms=int(self._bounds.visibility_timeout_s * 1000),
            start=self._polling.start,
            isolates=True,
        )

    def _name_line(self, request: ReceiveRequest) -> None:
        """Reports the last messages that came. Only while no poll is under way: its reply may be read next."""
        self._named_count += 1
        request.line, request.received, request.call = self._line, self._received, self._named_count

    async def _call(self, request: ReceiveRequest, timeout_s: float) -> ReceiveReply | None:
        """One Receive. None after a failure."""
        try:
            reply = await self._channel.call(Notify.receive, request, timeout_s=timeout_s)
        except TxmsgError as exc:
            self._failures += 1
            self._counts.failed_calls += 1
            self._is_refused = isinstance(exc, Unauthenticated | PermissionDenied)
            self._log_failure(exc)
            self._awaited = {}  # a broker that still waits asks again
            if isinstance(exc, ProtocolError):  # an unreadable reply would be sent again for ever, uncounted
                self._line, self._received = _new_line(), 0
            return None
        if self._failures:
            _log.info(
                "consumer.broker_back",
                "group %(group)s: broker %(broker)s answers again",
                group=self._polling.group,
                broker=self.address,
            )
        was_refused = self._is_refused
        self._failures, self._is_refused = 0, False
        if reply.awaited or self._awaited:
            self._hear_awaited(reply.awaited)
        if was_refused and not self._flushed:
            self._flush_soon()  # rather than when the long pause is over
        return reply

    def _hear_expired(self, expired: Sequence[Receipt]) -> None:
        """Handles receipts that the broker no longer honours: settled too late, or still held here."""
        late = lost = 0
        for receipt in expired:
            gone = self._held.lose(receipt)
            lost += gone
            late += len(receipt.offset) - gone
        if late:
            _log.info(
                "consumer.settled_late",
                "group %(group)s: %(messages)d acknowledgements or refusals came too late: those messages are "
                "redelivered",
                group=self._polling.group,
                messages=late,
            )
        if lost:
            _log.info(
                "consumer.messages_lost",
                "group %(group)s: broker %(broker)s has taken back %(messages)d messages that are held here: they are "
                "redelivered",
                group=self._polling.group,
                broker=self.address,
                messages=lost,
            )
