"""The ordering keys of a window: which of their messages may be delivered. Pure: knows no database and no clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from txmsg.broker.store.rows import Row, size_bytes_of


class Keys:
    """Lets one message of a key be ready or in flight at a time; later ones wait behind it, in order.

        free -> busy (a head is ready or in flight, others wait behind it) -> free
                  |
                  v
                blocked (the table `retry` has messages of the key, or a dead letter blocks it) -> free

    Messages of a blocked key follow it into that table, so that a failing key does not fill the window. The cost of a
    step does not depend on the number of keys or of waiting messages.
    """

    def __init__(self, blocked: Iterable[str] = ()) -> None:
        self._key_of: dict[int, str] = {}
        self._behind: dict[str, deque[Row]] = {}
        self._following: dict[int, str] = {}
        self._blocked: dict[str, int] = dict.fromkeys(blocked, 0)
        self.waiting_count = 0
        """Messages that wait behind a head."""
        self.waiting_size_bytes = 0

    def __bool__(self) -> bool:
        """Whether any key is busy or blocked."""
        return bool(self._key_of or self._blocked)

    def blocked(self) -> list[str]:
        """The keys whose later messages go straight to the table `retry`."""
        return list(self._blocked)

    @property
    def has_blocked(self) -> bool:
        """Whether any key is blocked."""
        return bool(self._blocked)

    def is_busy(self, key: str) -> bool:
        """Whether a message of this key is ready or in flight."""
        return key in self._behind

    def of(self, offsets: Iterable[int]) -> set[str]:
        """The keys of messages on their way to the table `retry`."""
        return {self._following[offset] for offset in offsets if offset in self._following}

    # ---- messages

    def admit(self, rows: Sequence[Row]) -> tuple[list[Row], list[int]]:
        """Of rows as read: those that are ready, and the offsets that follow their key into the table `retry`."""
        ready: list[Row] = []
        following: list[int] = []
        for row in rows:
            key = row.ordering_key
            if key is None:
                ready.append(row)
            elif key in self._blocked:
                following.append(self._follow(row.offset, key))
            elif key in self._behind:
                self._behind[key].append(row)
                self.waiting_count += 1
                self.waiting_size_bytes += size_bytes_of(row)
            else:
                self._behind[key] = deque()
                self._key_of[row.offset] = key
                ready.append(row)
        return ready, following

    def done(self, offsets: Iterable[int]) -> list[Row]:
        """These heads are done. Returns the next messages of their keys, which are ready now."""
        ready: list[Row] = []
        for offset in offsets:
            key = self._key_of.pop(offset, None)
            if key is None:
                continue
            if behind := self._behind[key]:
                row = self._next(behind)
                self._key_of[row.offset] = key
                ready.append(row)
            else:
                del self._behind[key]
        return ready

    def failed(self, offsets: Iterable[int]) -> list[int]:
        """These heads become retries, and their keys are blocked. Returns the offsets that follow them."""
        following: list[int] = []
        for offset in offsets:
            key = self._key_of.pop(offset, None)
            if key is not None:
                self._follow(offset, key)
                following += self._all_behind(key)
                del self._behind[key]
        return following

    def first_waiting(self) -> list[int]:
        """The first offset of each key that waits behind its head."""
        return [behind[0].offset for behind in self._behind.values() if behind]

    def rewound(self, is_out: Callable[[int], bool]) -> None:
        """All messages that are not in flight will be read again."""
        self._key_of = {offset: key for offset, key in self._key_of.items() if is_out(offset)}
        self._behind = {key: deque() for key in self._key_of.values()}
        self.waiting_count = self.waiting_size_bytes = 0

    # ---- blocked keys

    def block(self, key: str) -> list[int]:
        """The table `retry` has a message of this key. Returns the offsets that follow it there."""
        self._blocked.setdefault(key, 0)
        return self._all_behind(key) if key in self._behind else []

    def stored(self, offsets: Iterable[int]) -> None:
        """The retries of these offsets are on disk. Idempotent."""
        for offset in offsets:
            if (key := self._following.pop(offset, None)) is not None:
                self._blocked[key] -= 1

    def unblock(self, key: str) -> None:
        """The table `retry` has no message of this key. It stays blocked while some are on their way there."""
        if self._blocked.get(key) == 0:
            del self._blocked[key]

    def _follow(self, offset: int, key: str) -> int:
        self._following[offset] = key
        self._blocked[key] = self._blocked.get(key, 0) + 1
        return offset

    def _all_behind(self, key: str) -> list[int]:
        behind = self._behind[key]
        return [self._follow(self._next(behind).offset, key) for _ in range(len(behind))]

    def _next(self, behind: deque[Row]) -> Row:
        row = behind.popleft()
        self.waiting_count -= 1
        self.waiting_size_bytes -= size_bytes_of(row)
        return row
