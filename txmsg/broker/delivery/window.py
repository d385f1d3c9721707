"""The in-flight window of one group in one queue. Pure: knows no database; the clock is an argument."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from txmsg.broker.delivery.keys import OrderingKeys
from txmsg.broker.delivery.offsets import Expired, Expiry, InFlight, OffsetRanges, Visibility, runs
from txmsg.broker.store.failures import EXPIRED
from txmsg.broker.store.rows import StoredRow, size_bytes_of
from txmsg.runtime.backoff import Backoff
from txmsg.wire.tags import ALL_TAGS, TagExpression

ROW_SIZE_BYTES = 400
"""The memory of a message in addition to its body and headers."""


@dataclass(slots=True, eq=False)
class WindowMemory:
    """The size of all messages held ready, over all groups and queues.

    When it is full, only queues with no message ready are read, a few messages at a time.
    """

    size_bytes_max: float = math.inf
    size_bytes: int = 0

    @property
    def is_full(self) -> bool:
        """True if reading must wait."""
        return self.size_bytes >= self.size_bytes_max


_KEY_OF = attrgetter("ordering_key")
_OFFSET_OF = attrgetter("offset")


@dataclass(frozen=True, slots=True)
class DeliveryFailure:
    """The reason of a failed delivery.

    delay_s: seconds until the redelivery that the consumer asks for; None: the back-off decides. is_final: the consumer
    asks for none. is_rejected: because of the message, not of the consumer. is_least: the back-off decides if it is
    longer than delay_s. is_loss: the consumer was lost, perhaps because of another message, so it does not count as an
    attempt.
    """

    error: str
    delay_s: float | None = None
    is_final: bool = False
    is_rejected: bool = False
    is_least: bool = False
    is_loss: bool = False

    def next_s(self, backoff: Backoff, attempt: int) -> float | None:
        """Return the seconds from the failure of delivery `attempt` to the next one; None: it is a dead letter now."""
        if self.is_loss:
            return 0.0
        return None if self.is_final else backoff.delay_s(attempt, self.delay_s, is_least=self.is_least)


NOT_IN_TIME = DeliveryFailure(EXPIRED)
"""Its consumer may have failed: the back-off decides."""
TIME_IS_OVER = DeliveryFailure(EXPIRED, delay_s=0.0)
"""Its consumer chose the time: it is redelivered at once."""
LOST = DeliveryFailure("its consumer was lost, and had other messages, too", is_loss=True)
"""Redelivered at once, uncounted; alone if that happens again."""
FAILURE_OF = {Expiry.COUNTED: NOT_IN_TIME, Expiry.EXACT: TIME_IS_OVER, Expiry.LOST: LOST}
BEHIND = DeliveryFailure("an earlier message of its ordering key failed")
"""The reason of a message that was not delivered: it follows its key into the table `retry`. Compared by identity."""


def _ignore() -> None:
    pass


class WindowProgress(NamedTuple):
    """The written state of a window: all offsets below next_offset are done, and so are the ranges beyond it."""

    next_offset: int
    acked: tuple[tuple[int, int], ...]
    version: int


class QueueFetch(NamedTuple):
    """The limits of taking messages of a queue for one member."""

    count_max: int
    size_bytes_max: int
    """Bytes of bodies and headers."""
    wanted: TagExpression = ALL_TAGS
    """The tags that this member wants."""
    wanted_by_any: TagExpression = ALL_TAGS
    """The tags that any member of the group wants. Messages that none wants are acknowledged at once; those that only
    others want stay ready."""
    at_least_one: bool = True
    """True if the first message may be larger than size_bytes_max; else it could never be delivered."""
    in_runs: bool = False
    """True to take later messages of the ordering keys along, as far as there is room."""


class InFlightWindow:
    """The state of each offset of a queue for one group.

        not read -> ready -> in flight -> acked
                                 |          ^
                                 v          |
                              failing ------+   (once its retry row is on disk)

    Of an ordering key at most one message is ready or in flight, or a run of them is in flight (`OrderingKeys`).
    Messages that fail while a group is paused return from in flight to not read, with the next `rewind`. An offset
    counts as acked only when nothing is left to do for it, so `progress` may be written at any time.

    Bounded by count_max offsets that are read and not acked, and by size_bytes_max (and one message) of messages held
    ready. There is at most one more acked range beyond the cursor than such offsets. When full, `room_count` is 0, and
    nothing is read until consumers settle.
    """

    def __init__(
        self,
        next_offset: int,
        acked: Iterable[tuple[int, int]] = (),
        *,
        count_max: int = 10_000,
        size_bytes_max: int = 32 * 1024 * 1024,
        settled: Iterable[int] = (),
        blocked_keys: Iterable[str] = (),
        memory: WindowMemory | None = None,
    ) -> None:
        """Start from a written cursor. Offsets `settled` are done as well, and are still to be written."""
        self._cursor = next_offset
        self._acked = OffsetRanges(acked)
        unwritten = [offset for offset in settled if offset >= next_offset and offset not in self._acked]
        for start, end in runs(unwritten):
            self._acked.add(start, end)
        self._position = next_offset
        self._read_until = next_offset
        self._ready: deque[StoredRow] = deque()
        self._ready_size_bytes = 0
        self._in_flight: InFlight[int] = InFlight()
        self._failing: dict[int, DeliveryFailure] = {}
        self._unread: set[int] = set()
        self._keys = OrderingKeys(blocked_keys)
        self._memory = memory or WindowMemory()
        self._weight = 0
        self._count_max = count_max
        self._size_bytes_max = size_bytes_max
        # Dirty from the start if a failure's row was written and the cursor was not: nothing else would write it when
        # the row is gone.
        self._version = int(bool(unwritten))
        self._written = 0
        self.on_busy: Callable[[], object] = _ignore
        """Called whenever `is_busy` may have become true."""
        self._advance()

    # ---- reading

    @property
    def position(self) -> int:
        """The offset to be read next."""
        return self._position

    @property
    def ready_count(self) -> int:
        """Messages read and not yet delivered."""
        return len(self._ready)

    @property
    def is_ordered(self) -> bool:
        """True if a message with an ordering key is ready, in flight, or in the table `retry`."""
        return bool(self._keys)

    @property
    def outstanding_count(self) -> int:
        """Messages read and not yet acknowledged."""
        return (
            len(self._ready) + self._keys.waiting_count + len(self._in_flight) + len(self._failing) + len(self._unread)
        )

    @property
    def unsettled_count(self) -> int:
        """Messages in flight, and those whose failure is not yet written."""
        return len(self._in_flight) + len(self._failing)

    @property
    def in_flight_count(self) -> int:
        """Messages delivered and not settled."""
        return len(self._in_flight)

    @property
    def is_busy(self) -> bool:
        """True if messages are in flight, anything must be written, or keys are blocked."""
        return bool(self.unsettled_count or self.is_dirty or self._keys.has_blocked)

    @property
    def in_flight_until(self) -> float:
        """The time when the last message in flight expires, if none is renewed; minus infinity if none is in flight."""
        return self._in_flight.deadline_last()

    def room_count(self) -> int:
        """Return the number of messages that may be read now."""
        return max(0, self._count_max - self.outstanding_count) if self.room_bytes() else 0

    def room_bytes(self) -> int:
        """Return the number of bytes that may be read now."""
        return max(0, self._size_bytes_max - self._ready_size_bytes - self._keys.waiting_size_bytes)

    def put_rows(self, rows: Sequence[StoredRow]) -> None:
        """Add the rows read at `position`, without gaps. Offsets acknowledged before a restart are left out."""
        if rows and rows[0].offset < self._position:  # acknowledged while they were read
            rows = rows[self._position - rows[0].offset :]
        if not rows:
            return
        first, end = rows[0].offset, rows[-1].offset + 1
        assert (first, end - first) == (self._position, len(rows)), (
            f"read offsets {first} to {end - 1} in {len(rows)} rows at {self._position}: offsets must be dense"
        )
        if len(self._acked):
            rows = [row for row in rows if row.offset not in self._acked]
        # After a rewind: messages that were in flight or failing then are still known, and must not be ready a second
        # time.
        if first < self._read_until:
            rows = [row for row in rows if row.offset not in self._in_flight and row.offset not in self._failing]
        if self._keys or any(map(_KEY_OF, rows)):
            rows, following = self._keys.admit(rows)
            self._follow(following)
        self._make_ready(rows)
        self._weigh()
        self._position = end
        self._read_until = max(self._read_until, end)
        self._skip_acked()

    def skip_to(self, offset: int) -> None:
        """Skip the offsets from `position` to here, which are not kept any more."""
        assert offset > self._position, f"cannot skip back from {self._position} to {offset}"
        start, self._position = self._position, offset
        self._acked.add(start, offset)
        self._advance()
        self._version += 1
        self.on_busy()

    def close(self) -> None:
        """Drop the window: return its share of `WindowMemory`."""
        self._memory.size_bytes -= self._weight
        self._memory, self._weight = WindowMemory(), 0
        self.on_busy = _ignore

    # ---- delivering

    def take_rows(self, fetch: QueueFetch, visibility: Visibility) -> list[StoredRow]:
        """Take the next ready messages, in the order of the queue: they are in flight now."""
        taken = self._take_first(fetch) if fetch.wanted.is_all else self._take_matching(fetch)
        unwanted = self._add_runs(taken, fetch) if fetch.in_runs and self._keys else []
        self._weigh()
        if taken:
            self._in_flight.give([row.offset for row in taken], visibility)
            self.on_busy()
        self._count_as_acked(unwanted)
        return taken

    def _take_first(self, fetch: QueueFetch) -> list[StoredRow]:
        """Take messages for a member that wants all tags, without reading tags."""
        taken: list[StoredRow] = []
        ready, count_max, left = self._ready, fetch.count_max, fetch.size_bytes_max
        if self._ready_size_bytes <= left:  # all of them have room: the usual case, without a size per message
            if len(ready) <= count_max:
                taken = list(ready)
                ready.clear()
                self._ready_size_bytes = 0
            else:
                taken = [ready.popleft() for _ in range(count_max)]
                self._ready_size_bytes -= sum(map(size_bytes_of, taken))
            return taken
        while ready and len(taken) < count_max:
            size = size_bytes_of(ready[0])
            if size > left and (taken or not fetch.at_least_one):
                break
            left -= size
            taken.append(ready.popleft())
        self._ready_size_bytes -= fetch.size_bytes_max - left
        return taken

    def _add_runs(self, taken: list[StoredRow], fetch: QueueFetch) -> list[int]:
        """Add the messages that wait behind those taken.

        Returns offsets that no member wants, to be acked.
        """
        unwanted: list[int] = []
        left = fetch.size_bytes_max - sum(map(size_bytes_of, taken))
        for head in [row.offset for row in taken]:
            while len(taken) < fetch.count_max and (row := self._keys.next_of_run(head)) is not None:
                if fetch.wanted.matches(row.tag):
                    if size_bytes_of(row) > left:
                        break
                    left -= size_bytes_of(row)
                    taken.append(self._keys.join(head))
                elif fetch.wanted_by_any.matches(row.tag):
                    break  # the run ends before what another member wants
                else:
                    unwanted.append(self._keys.join(head).offset)
        # Receipts and replies are in the order of the queue.
        taken.sort(key=_OFFSET_OF)
        return unwanted

    def _take_matching(self, fetch: QueueFetch) -> list[StoredRow]:
        """Take messages for a member that wants only some tags."""
        taken: list[StoredRow] = []
        others: list[StoredRow] = []
        unwanted: list[int] = []
        ready, left = self._ready, fetch.size_bytes_max
        while ready and len(taken) < fetch.count_max:
            row = ready.popleft()
            if fetch.wanted.matches(row.tag):
                if size_bytes_of(row) > left and (taken or not fetch.at_least_one):
                    others.append(row)
                    break
                left -= size_bytes_of(row)
                taken.append(row)
            elif fetch.wanted_by_any.matches(row.tag):
                others.append(row)
                continue  # still ready: its bytes stay
            else:
                unwanted.append(row.offset)
                if self._keys:  # the next of its key is looked at now: no member is woken for it
                    self._go_on_after([row.offset])
            self._ready_size_bytes -= size_bytes_of(row)
        ready.extendleft(reversed(others))
        self._count_as_acked(unwanted)
        return taken

    # ---- settling

    def ack(self, token: int, offsets: Sequence[int]) -> list[int]:
        """Acknowledge messages. Returns the offsets that are not in flight under this token."""
        done, late = self._in_flight.give_back(offsets, token)
        self._count_as_acked(done)
        return late

    def renew(self, token: int, offsets: Sequence[int], deadline: float, *, is_exact: bool = False) -> list[int]:
        """Extend the deadline of messages that a consumer still holds. Returns offsets not in flight under this token.

        is_exact: the deadline may also move earlier.
        """
        return self._in_flight.renew(offsets, token, deadline, is_exact=is_exact)

    def take_back(self, token: int, offsets: Sequence[int]) -> tuple[list[int], list[int]]:
        """Remove messages in flight under this token: they must `fail` or become `unread`.

        Returns also those that were not.
        """
        return self._in_flight.give_back(offsets, token)

    def expire(self, now: float) -> list[Expired[int]]:
        """Remove messages that were not acknowledged in time, by token: they must `fail` or become `unread`."""
        return self._in_flight.expire(now)

    def fail(self, offsets: Sequence[int], failure: DeliveryFailure) -> list[int]:
        """Mark removed messages as failing: they count as acked once `stored`.

        Later messages of their keys fail with them. Returns those that become `unread` instead, as an earlier message
        of their run has: they come after it.
        """
        self._failing.update(dict.fromkeys(offsets, failure))
        self.on_busy()
        if not self._keys:
            return []
        following, unread = self._keys.failed(offsets)
        self._follow(following)
        self.unread(unread)
        self._weigh()
        return unread

    def unread(self, offsets: Collection[int]) -> None:
        """Read and deliver removed messages again after a `rewind`. Their keys wait for that."""
        failed_later = [later for offset in offsets for later in self._keys.returned(offset)]
        for offset in (*offsets, *failed_later):
            self._failing.pop(offset, None)
            if offset < self._position:
                self._unread.add(offset)
            else:  # a rewind has passed it: it will be read anyway
                self._go_on_after([offset])
        self._weigh()

    @property
    def has_unread(self) -> bool:
        """True if a `rewind` would bring messages back."""
        return bool(self._unread)

    def rewind(self) -> None:
        """Read again from the first unread or ready message on; everything that is not in flight is dropped."""
        if not self._unread:
            return
        waiting = [row.offset for row in self._ready] + self._keys.first_waiting()
        # All ready messages are dropped and read again: keeping those before the first unread one would deliver later
        # messages of a queue before earlier ones.
        self._position = self._acked.next_missing(min([*self._unread, *waiting]))
        self._unread.clear()
        self._ready.clear()
        self._ready_size_bytes = 0
        self._keys.rewound(lambda offset: offset in self._in_flight or offset in self._failing)
        self._weigh()

    # ---- failing

    def failing(self) -> dict[int, DeliveryFailure]:
        """Return the failures to be written as retries, by offset.

        They stay until `stored`: an interrupted write is repeated. Without messages that failed in a run of which an
        earlier message is out: once written, they would be delivered before that one by a broker that starts from the
        stored state.
        """
        return {offset: failure for offset, failure in self._failing.items() if not self._keys.holds(offset)}

    def stored(self, offsets: Iterable[int]) -> None:
        """Note that the retries of these offsets are on disk: the offsets count as acked. Idempotent."""
        stored = [offset for offset in offsets if self._failing.pop(offset, None) is not None]
        self._keys.stored(stored)
        self._count_as_acked(stored)

    def keys_of(self, offsets: Iterable[int]) -> set[str]:
        """Return the ordering keys of failing messages."""
        return self._keys.of(offsets)

    def blocked_keys(self) -> list[str]:
        """Return the keys with messages in the table `retry`, and those that a dead letter blocks."""
        return self._keys.blocked()

    def block(self, key: str) -> bool:
        """Block a key of which a retry is about to be delivered.

        Returns True if it may be: no message of the key is busy here.
        """
        self._keys.block(key)
        self.on_busy()
        return not self._keys.is_busy(key)

    def _follow(self, offsets: Sequence[int]) -> None:
        if offsets:
            self._failing.update(dict.fromkeys(offsets, BEHIND))
            self.on_busy()

    def unblock(self, keys: Iterable[str]) -> None:
        """Unblock keys without messages in the table `retry` and without a dead letter that blocks them."""
        for key in keys:
            self._keys.unblock(key)

    # ---- the cursor

    def progress(self) -> WindowProgress:
        """Return the progress to be written. Every offset that it counts as done is done."""
        return WindowProgress(self._cursor, tuple(self._acked), self._version)

    @property
    def is_dirty(self) -> bool:
        """True if there is progress that is not written."""
        return self._version != self._written

    def written(self, progress: WindowProgress) -> None:
        """Note that this progress is on disk."""
        # Acknowledgements may have come while it was written: then the version has moved on, and the window stays
        # dirty.
        self._written = max(self._written, progress.version)

    def _count_as_acked(self, offsets: list[int]) -> None:
        if not offsets:
            return
        for start, end in runs(offsets):
            self._acked.add(start, end)
        if self._keys:
            self._go_on_after(offsets)
            self._weigh()
        self._advance()
        self._version += 1
        self.on_busy()

    def _go_on_after(self, offsets: Iterable[int]) -> None:
        """Continue the keys of messages that are not out any more: the next ones are ready, or follow them."""
        ready, following = self._keys.done(offsets)
        self._make_ready(ready)
        self._follow(following)

    def _make_ready(self, rows: Sequence[StoredRow]) -> None:
        self._ready.extend(rows)
        self._ready_size_bytes += sum(map(size_bytes_of, rows))

    def _weigh(self) -> None:
        """Add the change since the last call to `WindowMemory`."""
        size_bytes = self._ready_size_bytes + self._keys.waiting_size_bytes
        weight = size_bytes + ROW_SIZE_BYTES * (len(self._ready) + self._keys.waiting_count)
        self._memory.size_bytes += weight - self._weight
        self._weight = weight

    def _advance(self) -> None:
        self._cursor = self._acked.next_missing(self._cursor)
        self._acked.drop_below(self._cursor)
        self._skip_acked()

    def _skip_acked(self) -> None:
        self._position = self._acked.next_missing(max(self._position, self._cursor))
