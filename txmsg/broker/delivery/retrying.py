"""The retries of one group that are in memory. Pure: knows no database; the clock is an argument."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from txmsg.broker.delivery.inflight import InFlight
from txmsg.broker.delivery.window import Failure
from txmsg.broker.store.rows import RetryRow, size_bytes_of

__all__ = ["Outcome", "Retrying"]

_Key = tuple[int, int]


class Outcome(NamedTuple):
    """What became of a retry, to be written: done (failure None), or failed at delivery `attempt`."""

    attempt: int
    failure: Failure | None
    ordering_key: str | None = None


class Retrying:
    """Due retries: ready, in flight, or with an outcome that is not yet written. Nothing else is in memory.

    Of each ordering key there is one at most.
    Bounded by count_max in all and size_bytes_max of ready messages; when full, due retries stay in their table.
    """

    def __init__(self, *, count_max: int = 1000, size_bytes_max: int = 8 * 1024 * 1024) -> None:
        self._count_max = count_max
        self._size_bytes_max = size_bytes_max
        self._ready: deque[RetryRow] = deque()
        self._ready_size_bytes = 0
        self._attempts: dict[_Key, int] = {}
        self._ordered: dict[_Key, str] = {}
        self._busy: set[tuple[int, str]] = set()
        self._in_flight: InFlight[_Key] = InFlight()
        self._outcomes: dict[_Key, Outcome] = {}

    @property
    def ready_count(self) -> int:
        """Retries not yet given to anybody."""
        return len(self._ready)

    @property
    def is_empty(self) -> bool:
        """Whether no retry is in memory."""
        return not self._attempts

    def known(self) -> list[_Key]:
        """(queue id, offset) of all that are in memory."""
        return list(self._attempts)

    def is_out(self, queue_ids: Collection[int]) -> bool:
        """Whether a retry of these queues is in the hands of a consumer, or its outcome not yet written."""
        return any(key[0] in queue_ids and (key in self._in_flight or key in self._outcomes) for key in self._attempts)

    def out_until(self, queue_id: int) -> float:
        """When consumers have no retry of a queue any more, or somewhat later; minus infinity: they have none."""
        is_out = any(key[0] == queue_id and key in self._in_flight for key in self._attempts)
        return self._in_flight.deadline_last() if is_out else -math.inf

    def room_count(self) -> int:
        """How many may be read now."""
        return max(0, self._count_max - len(self._attempts)) if self.room_bytes() else 0

    def room_bytes(self) -> int:
        """How many bytes may be read now."""
        return max(0, self._size_bytes_max - self._ready_size_bytes)

    def put(self, rows: Sequence[RetryRow]) -> None:
        """Takes due retries as read. One that became known meanwhile is left out, or whose ordering key did."""
        for row in rows:
            queue_id, attempt, _, message = row
            key, ordering_key = (queue_id, message[0]), message[9]
            if key not in self._attempts and (queue_id, ordering_key) not in self._busy:
                self._attempts[key] = attempt + 1
                if ordering_key is not None:
                    self._ordered[key] = ordering_key
                    self._busy.add((queue_id, ordering_key))
                self._ready.append(row)
                self._ready_size_bytes += size_bytes_of(message)

    def forget(self, queue_ids: Collection[int]) -> None:
        """Another broker delivers these queues now, their retries too."""
        gone = [key for key in self._attempts if key[0] in queue_ids]
        for key in gone:
            self._outcomes.pop(key, None)
        self.leave(gone)
        self._in_flight.forget(gone)
        self._keep_ready(lambda queue_id: queue_id not in queue_ids)

    def keep(self, queue_ids: Collection[int]) -> None:
        """Of other queues nothing stays ready here: it waits in its table, and leaves the room to what is asked for."""
        gone = [(row[0], row[3][0]) for row in self._ready if row[0] not in queue_ids]
        if gone:
            self.leave(gone)
            self._keep_ready(queue_ids.__contains__)

    def _keep_ready(self, of_queue: Callable[[int], bool]) -> None:
        self._ready = deque(row for row in self._ready if of_queue(row[0]))
        self._ready_size_bytes = sum(size_bytes_of(row[3]) for row in self._ready)

    def is_busy(self, queue_id: int, ordering_key: str) -> bool:
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
        wants: Callable[[int, str | None], bool],
    ) -> list[RetryRow]:
        """Up to `count` retries that `wants(queue id, tag)`, now in flight; as Window.take."""
        taken: list[RetryRow] = []
        others: list[RetryRow] = []
        while self._ready and len(taken) < count:
            row = self._ready.popleft()
            row_size_bytes = size_bytes_of(row[3])
            if not wants(row[0], row[3][4]):
                others.append(row)
                continue
            if taken and row_size_bytes > size_bytes:
                others.append(row)
                break
            size_bytes -= row_size_bytes
            self._ready_size_bytes -= row_size_bytes
            taken.append(row)
        self._ready.extendleft(reversed(others))
        self._in_flight.give([(row[0], row[3][0]) for row in taken], token, deadline, deadline_max)
        return taken

    def renew(self, queue_id: int, token: int, offsets: Sequence[int], deadline: float) -> list[int]:
        """Puts off the deadline of what a consumer still holds. Returns those not in flight under this token."""
        late = self._in_flight.renew([(queue_id, offset) for offset in offsets], token, deadline)
        return [offset for _, offset in late]

    def take_back(self, queue_id: int, token: int, offsets: Sequence[int]) -> tuple[list[_Key], list[int]]:
        """What was in flight under this token, to be `settled`, or to `leave`; and the offsets that were not."""
        done, late = self._in_flight.give_back([(queue_id, offset) for offset in offsets], token)
        return done, [offset for _, offset in late]

    def expire(self, now: float) -> list[tuple[int, list[_Key]]]:
        """What was not acknowledged in time, by token: to be `settled`, or to `leave`."""
        return self._in_flight.expire(now)

    def settled(self, keys: Iterable[_Key], failure: Failure | None) -> None:
        """Records the outcome of what was taken back; it counts when it is `written`."""
        for key in keys:
            self._outcomes[key] = Outcome(self._attempts[key], failure, self._ordered.get(key))

    def leave(self, keys: Iterable[_Key]) -> None:
        """What was taken back stays in its table as it is, and is read again."""
        for key in keys:
            del self._attempts[key]
            if (ordering_key := self._ordered.pop(key, None)) is not None:
                self._busy.discard((key[0], ordering_key))

    def outcomes(self) -> dict[_Key, Outcome]:
        """What must be written, by (queue id, offset). Stays here until `written`."""
        return dict(self._outcomes)

    def written(self, keys: Iterable[_Key]) -> None:
        """These outcomes are on disk: the retries are forgotten here. Telling twice is fine."""
        self.leave([key for key in keys if self._outcomes.pop(key, None) is not None])
