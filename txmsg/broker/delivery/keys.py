"""The ordering keys of a window: decides which of their messages may be delivered. Pure: no database, no clock.

The life of a key is the table `TRANSITIONS`, in the manner of h11: every pair of state and event that is not in it is
illegal. `OrderingKeys` changes the state of a key only by it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from txmsg.broker.store.rows import StoredRow, size_bytes_of


class KeyState(StrEnum):
    """The state of an ordering key."""

    FREE = "free"
    """No message of the key is in memory: the next one is its head, and ready."""
    BUSY = "busy"
    """Its head is ready or in flight, or a run is in flight; later messages wait behind."""
    BUSY_THEN_BLOCKED = "busy, then blocked"
    """As BUSY, but later messages follow into the table `retry` when all messages that are out are settled."""
    BLOCKED = "blocked"
    """No message is out. The table `retry` has messages of the key, or a dead letter blocks it: later ones follow."""


class KeyEvent(StrEnum):
    """An event in the life of an ordering key."""

    READ = "read"
    """The next message of the key was read."""
    JOIN = "join"
    """The first message that waits behind is taken together with the head: they are a run."""
    NEXT = "next"
    """All messages that were out are settled, and the first message that waits behind is the head now."""
    OVER = "over"
    """All messages that were out are settled, or will be read again, and no other message is ready instead."""
    BLOCK = "block"
    """The table `retry` has a message of the key, or one is on its way there, or a dead letter blocks the key."""
    UNBLOCK = "unblock"
    """The table `retry` has no message of the key, none is on its way there, and no dead letter blocks the key."""


_S, _E = KeyState, KeyEvent

TRANSITIONS: Mapping[tuple[KeyState, KeyEvent], KeyState] = MappingProxyType(
    {
        (_S.FREE, _E.READ): _S.BUSY,
        (_S.FREE, _E.BLOCK): _S.BLOCKED,
        (_S.FREE, _E.UNBLOCK): _S.FREE,
        (_S.BUSY, _E.READ): _S.BUSY,
        (_S.BUSY, _E.JOIN): _S.BUSY,
        (_S.BUSY, _E.NEXT): _S.BUSY,
        (_S.BUSY, _E.OVER): _S.FREE,
        (_S.BUSY, _E.BLOCK): _S.BUSY_THEN_BLOCKED,
        (_S.BUSY, _E.UNBLOCK): _S.BUSY,
        (_S.BUSY_THEN_BLOCKED, _E.READ): _S.BUSY_THEN_BLOCKED,
        (_S.BUSY_THEN_BLOCKED, _E.OVER): _S.BLOCKED,
        (_S.BUSY_THEN_BLOCKED, _E.BLOCK): _S.BUSY_THEN_BLOCKED,
        (_S.BUSY_THEN_BLOCKED, _E.UNBLOCK): _S.BUSY,
        (_S.BLOCKED, _E.READ): _S.BLOCKED,
        (_S.BLOCKED, _E.BLOCK): _S.BLOCKED,
        (_S.BLOCKED, _E.UNBLOCK): _S.FREE,
    }
)
"""The whole life of an ordering key in a window. A pair that is absent is illegal: OVER for a key that is not busy, and
JOIN or NEXT when the key is to be blocked. tests/unit/test_keys.py executes the table."""
# Module names, as it costs more to look up an attribute of an enum than a transition.
_FREE, _BLOCKED = _S.FREE, _S.BLOCKED
_READ, _JOIN, _NEXT, _OVER, _BLOCK, _UNBLOCK = _E.READ, _E.JOIN, _E.NEXT, _E.OVER, _E.BLOCK, _E.UNBLOCK
_ANY_BUSY = frozenset({_S.BUSY, _S.BUSY_THEN_BLOCKED})
_ANY_BLOCKED = frozenset({_S.BUSY_THEN_BLOCKED, _S.BLOCKED})


@dataclass(slots=True, eq=False)
class _KeyEntry:
    """An ordering key that is not free, and its messages in the window."""

    key: str
    state: KeyState = _FREE
    out: dict[int, bool] = field(default_factory=dict)
    """Offsets of the head, or of the rest of a run, in order; the value is True if the message has failed and waits for
    earlier ones."""
    behind: deque[StoredRow] | None = None
    """Later messages, in order; None: no message has waited yet. Most keys have one message."""
    returned: int | None = None
    """The first offset that is out and has returned uncounted."""
    following: int = 0
    """The number of messages on their way to the table `retry`."""


class OrderingKeys:
    """Allows one message of a key to be ready or in flight at a time, or a run of them.

    Later messages wait behind, in order. A run is a head and messages after it that one consumer got in one reply. No
    other message of the key is ready until all of the run is settled, in any order.

    Messages of a blocked key follow it into the table `retry`, so that a failing key does not fill the window. The
    table delivers the first message of a key that it has, so a message may enter it only when no earlier one of its key
    is out: one of a run that failed is held until then, and those behind follow when the whole run is over. The cost of
    a message does not depend on the number of keys or of waiting messages.
    """

    def __init__(self, blocked: Iterable[str] = ()) -> None:
        # Three indexes of the same entries, so that every event finds its key in constant time.
        self._entries: dict[str, _KeyEntry] = {}  # of all keys that are not free
        self._out: dict[int, _KeyEntry] = {}  # by offset of a message that is out
        self._following: dict[int, _KeyEntry] = {}  # by offset of a message on its way to the table `retry`
        self._blocked_count = 0
        self.waiting_count = 0
        """Messages that wait behind a head."""
        self.waiting_size_bytes = 0
        for key in blocked:
            self.block(key)

    def __bool__(self) -> bool:
        """Return True if any key is busy or blocked."""
        return bool(self._entries)

    def state_of(self, key: str) -> KeyState:
        """Return the state of an ordering key."""
        return self._entry(key).state

    def blocked(self) -> list[str]:
        """Return the keys whose later messages go straight to the table `retry`."""
        if not self._blocked_count:
            return []
        return [key for key, entry in self._entries.items() if entry.state in _ANY_BLOCKED]

    @property
    def has_blocked(self) -> bool:
        """True if any key is blocked."""
        return self._blocked_count > 0

    def is_busy(self, key: str) -> bool:
        """Return True if a message of this key is ready or in flight."""
        return self.state_of(key) in _ANY_BUSY

    def holds(self, offset: int) -> bool:
        """Return True if this message has failed and waits for an earlier one of its run to be settled."""
        return offset in self._out

    def of(self, offsets: Iterable[int]) -> set[str]:
        """Return the keys of messages on their way to the table `retry`."""
        return {self._following[offset].key for offset in offsets if offset in self._following}

    # ---- messages

    def admit(self, rows: Sequence[StoredRow]) -> tuple[list[StoredRow], list[int]]:
        """Return the rows that are ready, and the offsets that follow their key into the table `retry`."""
        ready: list[StoredRow] = []
        following: list[int] = []
        for row in rows:
            key = row.ordering_key
            if key is None:
                ready.append(row)
                continue
            # Entries of free keys are not stored, or a queue with a million keys would keep a million of them.
            entry = self._entries.get(key) or _KeyEntry(key)
            before = entry.state
            after = self._fire(entry, _READ)
            if after is _BLOCKED:
                self._follow(entry, row.offset)
                following.append(row.offset)
            elif before is _FREE:
                entry.out[row.offset] = False
                self._out[row.offset] = entry
                ready.append(row)
            else:
                if entry.behind is None:
                    entry.behind = deque()
                entry.behind.append(row)
                self.waiting_count += 1
                self.waiting_size_bytes += size_bytes_of(row)
        return ready, following

    def next_of_run(self, head: int) -> StoredRow | None:
        """Return the message that may `join` the run of this head, which is taken."""
        entry = self._out.get(head)
        if entry is None or not entry.behind or (entry.state, _JOIN) not in TRANSITIONS:
            return None
        return entry.behind[0]

    def join(self, head: int) -> StoredRow:
        """Take the next message of the key together with this head."""
        return self._take_next(self._out[head], _JOIN)

    def done(self, offsets: Iterable[int]) -> tuple[list[StoredRow], list[int]]:
        """Settle messages.

        Returns the next messages of their keys, which are ready now, and following offsets as `admit`.
        """
        ready: list[StoredRow] = []
        following: list[int] = []
        for offset in offsets:
            entry = self._out.pop(offset, None)
            if entry is not None:
                del entry.out[offset]
                self._go_on(entry, ready, following)
        return ready, following

    def failed(self, offsets: Iterable[int]) -> tuple[list[int], list[int]]:
        """Turn messages into retries, which block their keys, as soon as no earlier one of their run is out.

        Returns the offsets that follow them, and those of these that must be read again instead: an earlier one of
        their run has returned uncounted, and must come first.
        """
        following: list[int] = []
        unread: list[int] = []
        concerned: dict[_KeyEntry, None] = {}
        for offset in offsets:
            entry = self._out.get(offset)
            if entry is None:
                continue
            if entry.returned is not None and entry.returned < offset:
                unread.append(offset)
            else:
                entry.out[offset] = True
                concerned[entry] = None
        for entry in concerned:
            self._go_on(entry, [], following)
        return following, unread

    def returned(self, offset: int) -> list[int]:
        """Note that a message will be read again, uncounted.

        Returns failed later ones of its run: they will be, too.
        """
        entry = self._out.get(offset)
        if entry is None:
            return []
        entry.returned = offset if entry.returned is None else min(offset, entry.returned)
        failed = [later for later, has_failed in entry.out.items() if has_failed and later > offset]
        # Written as retries, they would be delivered before the one that has returned.
        entry.out.update(dict.fromkeys(failed, False))
        return failed

    def first_waiting(self) -> list[int]:
        """Return the first offset of each key that waits behind its head."""
        return [entry.behind[0].offset for entry in self._entries.values() if entry.behind]

    def rewound(self, is_out: Callable[[int], bool]) -> None:
        """Drop all messages that are not out, that is neither in flight nor failed: they will be read again."""
        self._out = {offset: entry for offset, entry in self._out.items() if is_out(offset)}
        self.waiting_count = self.waiting_size_bytes = 0
        for entry in [entry for entry in self._entries.values() if entry.state in _ANY_BUSY]:
            entry.behind = None
            entry.out = {offset: has_failed for offset, has_failed in entry.out.items() if is_out(offset)}
            if not entry.out:
                self._end_key(entry)

    def _go_on(self, entry: _KeyEntry, ready: list[StoredRow], following: list[int]) -> None:
        """Continue a busy key after one of its messages was settled.

        Adds to `ready` and `following`, as `admit` returns them.
        """
        out = entry.out
        # Failed messages leave in order, up to the first that is still in flight: the table must not get a message
        # while an earlier one of its key is out.
        while out and out[first := next(iter(out))]:
            del out[first], self._out[first]
            self._follow(entry, first)
        if out:
            return
        if entry.behind and (entry.state, _NEXT) in TRANSITIONS:
            entry.returned = None
            ready.append(self._take_next(entry, _NEXT))
            return
        self._end_key(entry)
        while entry.behind:
            offset = self._next(entry.behind).offset
            self._follow(entry, offset)
            following.append(offset)

    # ---- blocked keys

    def block(self, key: str) -> None:
        """Note that the table `retry` has a message of this key.

        Later ones follow when all that are out are settled.
        """
        self._fire(self._entry(key), _BLOCK)

    def stored(self, offsets: Iterable[int]) -> None:
        """Note that the retries of these offsets are on disk. Idempotent."""
        for offset in offsets:
            if (entry := self._following.pop(offset, None)) is not None:
                entry.following -= 1

    def unblock(self, key: str) -> None:
        """Note that the table `retry` has no message of this key.

        It stays blocked while some are on their way there.
        """
        entry = self._entry(key)
        # The statement that found the table empty may have run before messages of the key were written into it.
        if not entry.following:
            self._fire(entry, _UNBLOCK)

    def _follow(self, entry: _KeyEntry, offset: int) -> None:
        """Send a message to the table `retry`."""
        self._fire(entry, _BLOCK)
        self._following[offset] = entry
        entry.following += 1

    # ---- states

    def _entry(self, key: str) -> _KeyEntry:
        """Return the entry of a key. That of a free key is stored from the first event on that changes its state."""
        return self._entries.get(key) or _KeyEntry(key)

    def _fire(self, entry: _KeyEntry, event: KeyEvent) -> KeyState:
        """Apply an event to a key and return its new state.

        Raises AssertionError if the event is illegal in its state.
        """
        before = entry.state
        try:
            after = TRANSITIONS[before, event]
        except KeyError:
            raise AssertionError(f"ordering key {entry.key!r} is {before.name}: {event.name} is illegal then") from None
        if after is not before:
            entry.state = after
            self._blocked_count += (after in _ANY_BLOCKED) - (before in _ANY_BLOCKED)
            if before is _FREE:
                self._entries[entry.key] = entry
            elif after is _FREE:
                del self._entries[entry.key]
        return after

    def _end_key(self, entry: _KeyEntry) -> None:
        """Note that no message of this key is out any more."""
        entry.returned = None
        self._fire(entry, _OVER)

    def _take_next(self, entry: _KeyEntry, event: KeyEvent) -> StoredRow:
        """Take the first message that waits behind: it is out now."""
        assert entry.behind
        self._fire(entry, event)
        row = self._next(entry.behind)
        entry.out[row.offset] = False
        self._out[row.offset] = entry
        return row

    def _next(self, behind: deque[StoredRow]) -> StoredRow:
        row = behind.popleft()
        self.waiting_count -= 1
        self.waiting_size_bytes -= size_bytes_of(row)
        return row
