"""The retries of one group that are in memory. Pure: knows no database; the clock is an argument."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from txmsg.broker.delivery.offsets import Expired, InFlight
from txmsg.broker.delivery.window import Failure
from txmsg.broker.store.rows import RetryKey, RetryRow, size_bytes_of
from txmsg.message import QueueId


class Outcome(NamedTuple):
    """The outcome of a retry, to be written: done (failure None), or failed at delivery `attempt`."""

    attempt: int
    failure: Failure | None
    ordering_key: str | None = None


class Retries:
    """Due retries: ready, in flight, or with an outcome that is not yet written; at most one of each ordering key.

    Bounded by count_max in all and size_bytes_max of ready messages; when full, due retries stay in their table.
    """

    def __init__(self, *, count_max: int = 1000, size_bytes_max: int = 8 * 1024 * 1024) -> None:
        self._count_max = count_max
        self._size_bytes_max = size_bytes_max
        self._ready: deque[RetryRow] = deque()
        self._ready_size_bytes = 0
        self._attempts: dict[RetryKey, int] = {}
        self._ordered: dict[RetryKey, str] = {}
        self._busy: set[tuple[int, str]] = set()
        self._in_flight: InFlight[RetryKey] = InFlight()
        self._outcomes: dict[RetryKey, Outcome] = {}

    @property
    def ready_count(self) -> int:
        """Retries not yet delivered."""
        return len(self._ready)

    @property
    def is_empty(self) -> bool:
        """Whether no retry is in memory."""
        return not self._attempts

    def attempt(self, key: RetryKey) -> int:
        """Which delivery that is, or will be, of a retry in memory."""
        return self._attempts[key]

    def known(self) -> list[RetryKey]:
        """(queue id, offset) of all retries in memory."""
        return list(self._attempts)

    def has_unsettled(self, queue_ids: Collection[QueueId]) -> bool:
        """Whether a retry of these queues is in flight, or its outcome not yet written."""
        return any(
            key.queue_id in queue_ids and (key in self._in_flight or key in self._outcomes) for key in self._attempts
        )

    def in_flight_until(self, queue_id: QueueId) -> float:
        """A time by which no retry of a queue is in flight, if none is renewed; minus infinity if none is now."""
        in_flight = any(key.queue_id == queue_id and key in self._in_flight for key in self._attempts)
        return self._in_flight.deadline_last() if in_flight else -math.inf

    def room_count(self) -> int:
        """How many may be read now."""
        return max(0, self._count_max - len(self._attempts)) if self.room_bytes() else 0

    def room_bytes(self) -> int:
        """How many bytes may be read now."""
        return max(0, self._size_bytes_max - self._ready_size_bytes)

    def put(self, rows: Sequence[RetryRow]) -> None:
        """Adds due retries as read. Leaves out those that are known by now, also by their ordering key."""
        for row in rows:
            queue_id, ordering_key = row.queue_id, row.message.ordering_key
            key = _key_of(row)
            if key not in self._attempts and (queue_id, ordering_key) not in self._busy:
                self._attempts[key] = row.attempts + 1
                if ordering_key is not None:
                    self._ordered[key] = ordering_key
                    self._busy.add((queue_id, ordering_key))
                self._ready.append(row)
                self._ready_size_bytes += size_bytes_of(row.message)

    def forget(self, queue_ids: Collection[QueueId]) -> None:
        """Drops the retries of these queues: another broker delivers them now."""
        gone = [key for key in self._attempts if key.queue_id in queue_ids]
        for key in gone:
            self._outcomes.pop(key, None)
        self.leave(gone)
        self._in_flight.forget(gone)
        self._keep_ready(lambda queue_id: queue_id not in queue_ids)

    def keep(self, queue_ids: Collection[QueueId]) -> None:
        """Drops ready retries of all other queues: they wait in their table, and leave room for these."""
        gone = [_key_of(row) for row in self._ready if row.queue_id not in queue_ids]
        if gone:
            self.leave(gone)
            self._keep_ready(queue_ids.__contains__)

    def _keep_ready(self, of_queue: Callable[[int], bool]) -> None:
        self._ready = deque(row for row in self._ready if of_queue(row.queue_id))
        self._ready_size_bytes = sum(size_bytes_of(row.message) for row in self._ready)

    def is_busy(self, queue_id: QueueId, ordering_key: str) -> bool:
        """Whether a retry of this key is in memory."""
        return (queue_id, ordering_key) in self._busy

    def take(
        self,
        count: int,
        size_bytes: int,
        *,
        token: int,
        deadline: float,
        deadline_max: float = math.inf,
        is_exact: bool = False,
        wants: Callable[[QueueId, str | None], bool],
    ) -> list[RetryRow]:
        """Up to `count` retries that `wants(queue id, tag)`, now in flight; as Window.take."""
        taken: list[RetryRow] = []
        others: list[RetryRow] = []
        while self._ready and len(taken) < count:
            row = self._ready.popleft()
            row_size_bytes = size_bytes_of(row.message)
            if not wants(row.queue_id, row.message.tag):
                others.append(row)
                continue
            if taken and row_size_bytes > size_bytes:
                others.append(row)
                break
            size_bytes -= row_size_bytes
            self._ready_size_bytes -= row_size_bytes
            taken.append(row)
        self._ready.extendleft(reversed(others))
        self._in_flight.give([_key_of(row) for row in taken], token, deadline, deadline_max, is_exact=is_exact)
        return taken

    def renew(
        self, queue_id: QueueId, token: int, offsets: Sequence[int], deadline: float, *, is_exact: bool = False
    ) -> list[int]:
        """As Window.renew."""
        keys = [RetryKey(queue_id, offset) for offset in offsets]
        late = self._in_flight.renew(keys, token, deadline, is_exact=is_exact)
        return [offset for _, offset in late]

    def take_back(self, queue_id: QueueId, token: int, offsets: Sequence[int]) -> tuple[list[RetryKey], list[int]]:
        """Removes what is in flight under this token, to be `settled` or to `leave`. Returns also what was not."""
        done, late = self._in_flight.give_back([RetryKey(queue_id, offset) for offset in offsets], token)
        return done, [offset for _, offset in late]

    def expire(self, now: float) -> list[Expired[RetryKey]]:
        """Removes what was not acknowledged in time, by token: to be `settled` or to `leave`."""
        return self._in_flight.expire(now)

    def settled(self, keys: Iterable[RetryKey], failure: Failure | None) -> None:
        """Records the outcome of removed retries; it counts when it is `written`."""
        for key in keys:
            self._outcomes[key] = Outcome(self._attempts[key], failure, self._ordered.get(key))

    def leave(self, keys: Iterable[RetryKey]) -> None:
        """Removed retries stay in their table unchanged, and are read again."""
        for key in keys:
            del self._attempts[key]
            if (ordering_key := self._ordered.pop(key, None)) is not None:
                self._busy.discard((key.queue_id, ordering_key))

    def outcomes(self) -> dict[RetryKey, Outcome]:
        """What must be written, by (queue id, offset). Stays until `written`."""
        return dict(self._outcomes)

    def written(self, keys: Iterable[RetryKey]) -> None:
        """These outcomes are on disk: the retries are dropped here. Idempotent."""
        self.leave([key for key in keys if self._outcomes.pop(key, None) is not None])


def _key_of(row: RetryRow) -> RetryKey:
    return RetryKey(row.queue_id, row.message.offset)
