"""The ordering keys of a window: which of their messages may be given. Pure: knows no database and no clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from txmsg.broker.store.rows import Row, size_bytes_of

__all__ = ["Keys"]


class Keys:
    """Lets one message of a key be ready or in flight at a time; later ones wait behind it, in their order.

        free -> busy (a head is ready or in flight, others wait behind it) -> free
                  |
                  v
                held (messages of the key stand in the table `retry`, or a dead letter blocks it) -> free

    What comes to a held key follows it into that table, so that a failing key does not fill the window. Every step
    costs the same, however many keys there are and however many messages wait.
    """

    def __init__(self, held: Iterable[str] = ()) -> None:
        self._key_of: dict[int, str] = {}
        self._behind: dict[str, deque[Row]] = {}
        self._following: dict[int, str] = {}
        self._held: dict[str, int] = dict.fromkeys(held, 0)
        self.waiting_count = 0
        """Messages that wait behind a head."""
        self.waiting_size_bytes = 0

    def __bool__(self) -> bool:
        """Whether there is anything to keep in order."""
        return bool(self._key_of or self._held)

    def held(self) -> list[str]:
        """The keys whose later messages go straight to the table `retry`."""
        return list(self._held)

    @property
    def has_held(self) -> bool:
        """Whether any key is held."""
        return bool(self._held)

    def is_busy(self, key: str) -> bool:
        """Whether a message of this key is ready or in flight."""
        return key in self._behind

    def of(self, offsets: Iterable[int]) -> set[str]:
        """The keys of messages on their way to the table `retry`."""
        return {self._following[offset] for offset in offsets if offset in self._following}

    # ---- coming and going

    def admit(self, rows: Sequence[Row]) -> tuple[list[Row], list[int]]:
        """Of rows as read: those that are ready, and the offsets that follow their key into the table `retry`."""
        ready: list[Row] = []
        following: list[int] = []
        for row in rows:
            key = row[9]
            if key is None:
                ready.append(row)
            elif key in self._held:
                following.append(self._follow(row[0], key))
            elif key in self._behind:
                self._behind[key].append(row)
                self.waiting_count += 1
                self.waiting_size_bytes += size_bytes_of(row)
            else:
                self._behind[key] = deque()
                self._key_of[row[0]] = key
                ready.append(row)
        return ready, following

    def done(self, offsets: Iterable[int]) -> list[Row]:
        """Nothing is left to do for these heads: the next messages of their keys, which are ready now."""
        ready: list[Row] = []
        for offset in offsets:
            key = self._key_of.pop(offset, None)
            if key is None:
                continue
            if behind := self._behind[key]:
                row = self._next(behind)
                self._key_of[row[0]] = key
                ready.append(row)
            else:
                del self._behind[key]
        return ready

    def failed(self, offsets: Iterable[int]) -> list[int]:
        """These heads become retries, and their keys are held. Returns the offsets that follow them."""
        following: list[int] = []
        for offset in offsets:
            key = self._key_of.pop(offset, None)
            if key is not None:
                self._follow(offset, key)
                following += self._all_behind(key)
                del self._behind[key]
        return following

    def first_waiting(self) -> list[int]:
        """Of each key the first offset that waits behind its head."""
        return [behind[0][0] for behind in self._behind.values() if behind]

    def rewound(self, is_out: Callable[[int], bool]) -> None:
        """All that is not out will be read again."""
        self._key_of = {offset: key for offset, key in self._key_of.items() if is_out(offset)}
        self._behind = {key: deque() for key in self._key_of.values()}
        self.waiting_count = self.waiting_size_bytes = 0

    # ---- held keys

    def hold(self, key: str) -> list[int]:
        """A message of this key stands in the table `retry`. Returns the offsets that follow it there."""
        self._held.setdefault(key, 0)
        return self._all_behind(key) if key in self._behind else []

    def stored(self, offsets: Iterable[int]) -> None:
        """The retries of these offsets are on disk. Telling twice is fine."""
        for offset in offsets:
            if (key := self._following.pop(offset, None)) is not None:
                self._held[key] -= 1

    def release(self, key: str) -> None:
        """The table `retry` has no message of this key. It stays held while some are on their way there."""
        if self._held.get(key) == 0:
            del self._held[key]

    def _follow(self, offset: int, key: str) -> int:
        self._following[offset] = key
        self._held[key] = self._held.get(key, 0) + 1
        return offset

    def _all_behind(self, key: str) -> list[int]:
        behind = self._behind[key]
        return [self._follow(self._next(behind)[0], key) for _ in range(len(behind))]

    def _next(self, behind: deque[Row]) -> Row:
        row = behind.popleft()
        self.waiting_count -= 1
        self.waiting_size_bytes -= size_bytes_of(row)
        return row
