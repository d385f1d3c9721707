"""The ordering keys of a window: which of their messages may be delivered. Pure: knows no database and no clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from txmsg.broker.store.rows import Row, size_bytes_of


class Keys:
    """Lets one message of a key be ready or in flight at a time, or a run of them; later ones wait behind, in order.

        free -> busy (a head is ready, or it or a run is in flight; others wait behind) -> free
                  |
                  v
                blocked (the table `retry` has messages of the key, or a dead letter blocks it) -> free

    A run is a head and messages after it that one consumer got in one reply. Nothing else of the key is ready until all
    of it is settled, in whatever order that is.

    Messages of a blocked key follow it into that table, so that a failing key does not fill the window. The table gives
    its first one of a key, so a message may go there only when no earlier one of its key is out: one of a run that
    failed is held until then, and those behind follow when the whole run is over. The cost of a step does not depend on
    the number of keys or of waiting messages.
    """

    def __init__(self, blocked: Iterable[str] = ()) -> None:
        self._key_of: dict[int, str] = {}
        self._behind: dict[str, deque[Row]] = {}
        self._runs: dict[str, dict[int, bool]] = {}  # what is left of a run, in order: whether it failed
        self._returned: dict[str, int] = {}  # the first of a run that has returned uncounted
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

    def holds(self, offset: int) -> bool:
        """Whether this message, which failed, waits for an earlier one of its run to be settled."""
        return offset in self._key_of

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
            elif key in self._behind:
                self._behind[key].append(row)
                self.waiting_count += 1
                self.waiting_size_bytes += size_bytes_of(row)
            elif key in self._blocked:
                following.append(self._follow(row.offset, key))
            else:
                self._behind[key] = deque()
                self._key_of[row.offset] = key
                ready.append(row)
        return ready, following

    def next_of_run(self, head: int) -> Row | None:
        """The message that may `join` the run of this head, which is taken."""
        key = self._key_of.get(head)
        if key is None or key in self._blocked:
            return None
        return self._behind[key][0] if self._behind[key] else None

    def join(self, head: int) -> Row:
        """The next message of the key is taken together with this head."""
        key = self._key_of[head]
        row = self._next(self._behind[key])
        self._runs.setdefault(key, {head: False})[row.offset] = False
        self._key_of[row.offset] = key
        return row

    def done(self, offsets: Iterable[int]) -> tuple[list[Row], list[int]]:
        """These are done. Returns the next messages of their keys, which are ready now, and offsets as `admit`."""
        ready: list[Row] = []
        following: list[int] = []
        for offset in offsets:
            key = self._key_of.pop(offset, None)
            if key is None:
                continue
            if (run := self._runs.get(key)) is not None:
                del run[offset]
            rows, followers = self._go_on(key)
            ready += rows
            following += followers
        return ready, following

    def failed(self, offsets: Iterable[int]) -> tuple[list[int], list[int]]:
        """These become retries, and block their keys, as soon as no earlier one of their run is out.

        Returns the offsets that follow them, and those of these that must be read again instead: an earlier one of
        their run has returned uncounted, and is to come first.
        """
        following: list[int] = []
        unread: list[int] = []
        runs: dict[str, dict[int, bool]] = {}
        for offset in offsets:
            key = self._key_of.get(offset)
            if key is None:
                continue
            if self._returned.get(key, offset) < offset:
                unread.append(offset)
            else:
                runs[key] = self._runs.setdefault(key, {})
                runs[key][offset] = True
        for key in runs:
            following += self._go_on(key)[1]
        return following, unread

    def returned(self, offset: int) -> list[int]:
        """It will be read again, uncounted. Returns later ones of its run that had failed: they will be, too."""
        key = self._key_of.get(offset)
        if key is None or (run := self._runs.get(key)) is None:
            return []
        self._returned[key] = min(offset, self._returned.get(key, offset))
        failed = [later for later, has_failed in run.items() if has_failed and later > offset]
        run.update(dict.fromkeys(failed, False))
        return failed

    def _go_on(self, key: str) -> tuple[list[Row], list[int]]:
        """A message of a busy key was settled. Returns as `done`."""
        run = self._runs.get(key, {})
        while run and run[first := next(iter(run))]:
            del run[first], self._key_of[first]
            self._follow(first, key)
        if run:
            return [], []
        self._runs.pop(key, None)
        self._returned.pop(key, None)
        if key not in self._blocked and (behind := self._behind[key]):
            row = self._next(behind)
            self._key_of[row.offset] = key
            return [row], []
        following = self._all_behind(key)
        del self._behind[key]
        return [], following

    def first_waiting(self) -> list[int]:
        """The first offset of each key that waits behind its head."""
        return [behind[0].offset for behind in self._behind.values() if behind]

    def rewound(self, is_out: Callable[[int], bool]) -> None:
        """All messages that are not out, which is in flight or failed, will be read again."""
        self._key_of = {offset: key for offset, key in self._key_of.items() if is_out(offset)}
        runs = ((key, {n: failed for n, failed in run.items() if is_out(n)}) for key, run in self._runs.items())
        self._runs = {key: run for key, run in runs if run}
        self._returned = {key: offset for key, offset in self._returned.items() if key in self._runs}
        self._behind = {key: deque() for key in self._key_of.values()}
        self.waiting_count = self.waiting_size_bytes = 0

    # ---- blocked keys

    def block(self, key: str) -> None:
        """The table `retry` has a message of this key. Later ones follow it there when what is out is settled."""
        self._blocked.setdefault(key, 0)

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
