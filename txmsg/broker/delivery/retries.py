"""The retries of one group that are in memory. Pure: knows no database; the clock is an argument."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from enum import Enum
from typing import NamedTuple, assert_never

from txmsg.broker.delivery.late import LateResults
from txmsg.broker.delivery.offsets import Expired, Expiry, InFlight, Visibility
from txmsg.broker.delivery.window import NOT_IN_TIME, DeliveryFailure
from txmsg.broker.store.rows import RetryKey, RetryRow, size_bytes_of
from txmsg.message import QueueId
from txmsg.wire.codec import SUSPECT_FROM


class RetryOutcome(NamedTuple):
    """The outcome of a retry, to be written: done (failure None), or failed at delivery `attempt`.

    losses: the number of consumers that were lost with it, since it was last counted as a failure of its own.
    """

    attempt: int
    failure: DeliveryFailure | None
    ordering_key: str | None = None
    losses: int = 0


class SuspectSelection(Enum):
    """The kinds of retries to take: messages that may kill their process, others, or both."""

    AMONG_OTHERS = "among others"
    ONLY = "only"
    LEFT_OUT = "left out"

    def takes(self, *, is_suspect: bool) -> bool:
        """Return True if a retry of this kind is to be taken."""
        match self:
            case SuspectSelection.AMONG_OTHERS:
                return True
            case SuspectSelection.ONLY:
                return is_suspect
            case SuspectSelection.LEFT_OUT:
                return not is_suspect
            case _:
                assert_never(self)


class RetryFetch(NamedTuple):
    """The limits of taking retries for one member."""

    count_max: int
    size_bytes_max: int
    """Bytes of bodies and headers. The first retry may be larger."""
    is_wanted: Callable[[QueueId, str | None], bool]
    """Returns True if the member gets a retry of this queue and tag."""
    suspects: SuspectSelection = SuspectSelection.AMONG_OTHERS


class Retries:
    """Due retries: ready, in flight, or with an outcome that is not yet written.

    Of an ordering key at most one is ready or in flight. Those that follow it in their table wait behind it in memory:
    each is ready as soon as the one before is acknowledged, and the outcomes are written together. When it fails or
    stays in the table, those behind are dropped, and read again with it (decision 91).

    Bounded by count_max in all and size_bytes_max of messages not yet delivered, of which those behind take at most
    half; when full, due retries stay in their table.
    """

    def __init__(self, *, count_max: int = 1000, size_bytes_max: int = 8 * 1024 * 1024) -> None:
        self._count_max = count_max
        self._size_bytes_max = size_bytes_max
        self._ready: deque[RetryRow] = deque()
        self._ready_size_bytes = 0
        self._attempts: dict[RetryKey, int] = {}
        self._losses: dict[RetryKey, int] = {}  # of those that have any
        self._suspect_count = 0  # of those ready
        self._ordered: dict[RetryKey, str] = {}
        self._busy: dict[tuple[int, str], int] = {}  # by ordering key, how many are in memory
        self._current: dict[tuple[int, str], RetryKey] = {}  # the one that is ready or in flight
        self._behind: dict[tuple[int, str], deque[RetryRow]] = {}
        self._behind_count = self._behind_size_bytes = 0
        self._in_flight: InFlight[RetryKey] = InFlight()
        self.late = LateResults()
        """Late results of retries, and of first deliveries that are going to be retries."""
        self._outcomes: dict[RetryKey, RetryOutcome] = {}

    @property
    def ready_count(self) -> int:
        """Retries not yet delivered."""
        return len(self._ready)

    @property
    def is_empty(self) -> bool:
        """True if no retry is in memory."""
        return not self._attempts

    def attempt(self, key: RetryKey) -> int:
        """Return the number of the present or next delivery of a retry in memory."""
        return self._attempts[key]

    def known(self) -> list[RetryKey]:
        """Return (queue id, offset) of all retries in memory."""
        return list(self._attempts)

    def has_unsettled(self, queue_ids: Collection[QueueId]) -> bool:
        """Return True if a retry of these queues is in flight, or its outcome not yet written."""
        return any(
            key.queue_id in queue_ids and (key in self._in_flight or key in self._outcomes) for key in self._attempts
        )

    def in_flight_until(self, queue_id: QueueId) -> float:
        """Return a time by which no retry of a queue is in flight, if none is renewed; minus infinity: none is."""
        in_flight = any(key.queue_id == queue_id and key in self._in_flight for key in self._attempts)
        # The last deadline of all queues: an upper bound, since deadlines are kept by batch and not by queue.
        return self._in_flight.deadline_last() if in_flight else -math.inf

    def room_count(self) -> int:
        """Return the number of retries that may be read now."""
        return max(0, self._count_max - len(self._attempts)) if self.room_bytes() else 0

    def room_bytes(self) -> int:
        """Return the number of bytes that may be read now."""
        return max(0, self._size_bytes_max - self._ready_size_bytes - self._behind_size_bytes)

    def room_behind(self) -> tuple[int, int]:
        """Return the number of retries, and of bytes, that may be read now to wait behind others."""
        return (
            max(0, self._count_max // 2 - self._behind_count),
            max(0, self._size_bytes_max // 2 - self._behind_size_bytes),
        )

    def put_retries(self, rows: Sequence[RetryRow]) -> None:
        """Add retries as read: due ones, and with the first of an ordering key those behind it, in order.

        Leaves out those that are known by now, also by their ordering key: retries that wait behind are read again
        after them.
        """
        added: set[tuple[int, str]] = set()
        for row in rows:
            queue_id, ordering_key = row.queue_id, row.message.ordering_key
            key = _key_of(row)
            if key in self._attempts:
                continue
            if ordering_key is not None:
                pair = (queue_id, ordering_key)
                if pair in self._busy and pair not in added:  # a redriven dead letter: it is the next of its key
                    self._drop_behind(pair)
                    continue
                self._ordered[key] = ordering_key
                self._busy[pair] = self._busy.get(pair, 0) + 1
                self._note(key, row)
                if pair in added:
                    self._behind.setdefault(pair, deque()).append(row)
                    self._behind_count += 1
                    self._behind_size_bytes += size_bytes_of(row.message)
                    continue
                added.add(pair)
                self._current[pair] = key
            self._note(key, row)
            self._make_ready(row)

    def _note(self, key: RetryKey, row: RetryRow) -> None:
        self._attempts[key] = row.attempts + 1
        if row.losses:
            self._losses[key] = row.losses

    def forget_queues(self, queue_ids: Collection[QueueId]) -> None:
        """Drop the retries of these queues: another broker delivers them now."""
        gone = [key for key in self._attempts if key.queue_id in queue_ids]
        for pair in [pair for pair in self._current if pair[0] in queue_ids]:
            self._end_key(pair)
        for key in gone:
            self._outcomes.pop(key, None)
            if key in self._attempts:
                self._drop(key)
        self._in_flight.forget_keys(gone)
        self.late.forget_queues(queue_ids)
        self._keep_ready(lambda queue_id: queue_id not in queue_ids)

    def keep_queues(self, queue_ids: Collection[QueueId]) -> None:
        """Drop ready retries of all other queues: they wait in their table, and leave room for these."""
        gone = [_key_of(row) for row in self._ready if row.queue_id not in queue_ids]
        if gone:
            self.leave(gone)
            self._keep_ready(queue_ids.__contains__)

    def _keep_ready(self, of_queue: Callable[[int], bool]) -> None:
        self._ready = deque(row for row in self._ready if of_queue(row.queue_id))
        self._ready_size_bytes = sum(size_bytes_of(row.message) for row in self._ready)
        self._suspect_count = sum(map(_is_suspect, self._ready))

    def _make_ready(self, row: RetryRow) -> None:
        self._ready.append(row)
        self._ready_size_bytes += size_bytes_of(row.message)
        self._suspect_count += _is_suspect(row)

    def _take_out(self, row: RetryRow) -> None:
        """Subtract a row that is not ready any more."""
        self._ready_size_bytes -= size_bytes_of(row.message)
        self._suspect_count -= _is_suspect(row)

    def is_busy(self, queue_id: QueueId, ordering_key: str) -> bool:
        """Return True if a retry of this key is in memory."""
        return (queue_id, ordering_key) in self._busy

    def goes_on(self, queue_id: QueueId, ordering_key: str) -> bool:
        """Return True if a retry of this key is ready or in flight."""
        return (queue_id, ordering_key) in self._current

    def take_retries(self, fetch: RetryFetch, visibility: Visibility) -> list[RetryRow]:
        """Take the next ready retries, in the order in which they were read: they are in flight now."""
        taken: list[RetryRow] = []
        if fetch.suspects is SuspectSelection.ONLY and not self._suspect_count:
            return taken
        others: list[RetryRow] = []
        left = fetch.size_bytes_max
        while self._ready and len(taken) < fetch.count_max:
            row = self._ready.popleft()
            # Its earlier consumer has finished after all: delivered again, it would take effect twice (decision 95).
            if self.late.is_processed(key := _key_of(row)):
                self._take_out(row)
                self.settled([key], None)
                continue
            is_taken = fetch.suspects.takes(is_suspect=_is_suspect(row))
            if not is_taken or not fetch.is_wanted(row.queue_id, row.message.tag):
                others.append(row)
                continue
            row_size_bytes = size_bytes_of(row.message)
            if taken and row_size_bytes > left:
                others.append(row)
                break
            left -= row_size_bytes
            self._take_out(row)
            taken.append(row)
        self._ready.extendleft(reversed(others))
        self._in_flight.give([_key_of(row) for row in taken], visibility)
        return taken

    def expire_as(self, expiry: Expiry, queue_id: QueueId, token: int, offsets: Sequence[int]) -> list[int]:
        """Set the consequence of expiry of retries in flight under this token. Returns the offsets that are not."""
        keys = [RetryKey(queue_id, offset) for offset in offsets]
        return [offset for _, offset in self._in_flight.expire_as(expiry, keys, token)]

    def renew(
        self, queue_id: QueueId, token: int, offsets: Sequence[int], deadline: float, *, is_exact: bool = False
    ) -> list[int]:
        """Extend the deadline of retries that a consumer still holds, as `InFlightWindow.renew`."""
        keys = [RetryKey(queue_id, offset) for offset in offsets]
        late = self._in_flight.renew(keys, token, deadline, is_exact=is_exact)
        return [offset for _, offset in late]

    def take_back(self, queue_id: QueueId, token: int, offsets: Sequence[int]) -> tuple[list[RetryKey], list[int]]:
        """Remove retries in flight under this token, to be `settled` or to `leave`.

        Returns also the offsets that were not.
        """
        done, late = self._in_flight.give_back([RetryKey(queue_id, offset) for offset in offsets], token)
        return done, [offset for _, offset in late]

    def expire(self, now: float) -> list[Expired[RetryKey]]:
        """Remove retries that were not acknowledged in time, by token: to be `settled` or to `leave`."""
        return self._in_flight.expire(now)

    def settled(self, keys: Iterable[RetryKey], failure: DeliveryFailure | None) -> None:
        """Record the outcome of removed retries, unless a late result counts. It takes effect when it is `written`.

        Behind those that are done the next ones of their ordering keys are ready now.
        """
        for key in keys:
            ordering_key = self._ordered.get(key)
            outcome = None if self.late.is_processed(key) else failure
            self._outcomes[key] = RetryOutcome(
                self._attempts[key], outcome, ordering_key, self._losses_after(key, outcome)
            )
            if ordering_key is None:
                continue
            pair = (key.queue_id, ordering_key)
            if outcome is None and pair in self._behind:
                row = self._next_behind(pair)
                self._current[pair] = _key_of(row)
                self._make_ready(row)
            else:
                self._end_key(pair)

    def _losses_after(self, key: RetryKey, failure: DeliveryFailure | None) -> int:
        losses = self._losses.get(key, 0)
        if failure is None or not (failure.is_loss or failure is NOT_IN_TIME):
            return 0  # its consumer survived it
        return losses + failure.is_loss

    def leave(self, keys: Iterable[RetryKey]) -> None:
        """Leave removed retries in their table unchanged; they are read again."""
        for key in keys:
            pair = (key.queue_id, self._ordered.get(key, ""))
            if self._current.get(pair) == key:
                self._end_key(pair)
            self._drop(key)

    def _next_behind(self, pair: tuple[int, str]) -> RetryRow:
        behind = self._behind[pair]
        row = behind.popleft()
        if not behind:
            del self._behind[pair]
        self._behind_count -= 1
        self._behind_size_bytes -= size_bytes_of(row.message)
        return row

    def _end_key(self, pair: tuple[int, str]) -> None:
        """Note that no retry of this ordering key is ready or in flight any more. Drops those that wait behind."""
        del self._current[pair]
        self._drop_behind(pair)

    def _drop_behind(self, pair: tuple[int, str]) -> None:
        while pair in self._behind:
            self._drop(_key_of(self._next_behind(pair)))

    def _drop(self, key: RetryKey) -> None:
        del self._attempts[key]
        self._losses.pop(key, None)
        if (ordering_key := self._ordered.pop(key, None)) is not None:
            pair = (key.queue_id, ordering_key)
            self._busy[pair] -= 1
            if not self._busy[pair]:
                del self._busy[pair]

    @property
    def must_write(self) -> bool:
        """True if an outcome is more than an acknowledgement with the next retry of its ordering key in memory."""
        return any(
            failure is not None or ordering_key is None or not self.goes_on(key.queue_id, ordering_key)
            for key, (_, failure, ordering_key, _) in self._outcomes.items()
        )

    def outcomes(self) -> dict[RetryKey, RetryOutcome]:
        """Return the outcomes to be written, by (queue id, offset). They stay until `written`."""
        return dict(self._outcomes)

    def written(self, keys: Iterable[RetryKey]) -> None:
        """Drop retries whose outcomes are on disk. Idempotent."""
        for key in keys:
            if self._outcomes.pop(key, None) is not None:
                self._drop(key)


def _key_of(row: RetryRow) -> RetryKey:
    return RetryKey(row.queue_id, row.message.offset)


def _is_suspect(row: RetryRow) -> bool:
    return row.losses >= SUSPECT_FROM
