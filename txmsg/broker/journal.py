"""The journal of topics that have one: records of their messages' lives, for later questions of people.

Parts note events in memory; a separate task writes them a few times per second, many entries in one statement. So
nothing waits for the journal, and nothing fails with it. Entries that were noted and not written when a broker dies are
lost: those of the last quarter of a second. Sending and outcomes are not noted here: the batch that stores a message
journals it, too (journal.sql).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from typing import Final

import psycopg

from txmsg.broker.periodic import repeat
from txmsg.broker.store import journal as store
from txmsg.broker.store.connect import Pool
from txmsg.broker.store.incarnation import same_incarnation
from txmsg.broker.store.journal import RUN_MAX, JournalRow
from txmsg.errors import BrokerUnavailable, StorageError
from txmsg.message import TransactionId
from txmsg.runtime.logs import EventLog

_log = EventLog(__name__)

ENTRIES_MAX: Final = 20_000
"""Maximum number of entries that wait to be written. Further ones are only counted."""
_ENTRIES_PER_STATEMENT: Final = 2000
_TEXT_LENGTH_MAX: Final = 2000
_WRITE_S: Final = 0.25
_LOOK_S: Final = 5.0


class JournalEvent(StrEnum):
    """An event that a broker notes. On disk, as JournalEntry of administration/messages.py says."""

    CHECK = "check"
    DELIVERED = "delivered"
    RETURNED = "returned"
    ACKNOWLEDGED = "acknowledged"
    REFUSED = "refused"
    EXPIRED = "expired"
    RETRY = "retry"
    DEAD = "dead"
    LOST = "lost"


class JournalBuffer:
    """The entries that one broker has noted and not yet written. Knows no database.

    Noting never waits, and never fails.
    """

    def __init__(self, *, entries_max: int = ENTRIES_MAX, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.queues: frozenset[int] = frozenset()
        """The queues, by id, of topics that have a journal. While it is empty, which is the usual case, nothing is
        noted."""
        self.topics: frozenset[str] = frozenset()
        """The names of these topics."""
        self.lost = 0
        """Entries that were dropped, since the broker started."""
        self._entries_max = entries_max
        self._monotonic = monotonic
        self._waiting: deque[JournalRow] = deque()
        self._untold = 0

    @property
    def waiting(self) -> int:
        """Entries that wait to be written."""
        return len(self._waiting)

    def note(
        self,
        event: JournalEvent,
        queue_id: int,
        offsets: Iterable[int],
        group: str,
        *,
        by: str | None = None,
        attempt: int | None = None,
        detail: str | None = None,
        delay_s: float | None = None,
    ) -> None:
        """Note an event of all of these messages in a group, now. delay_s: seconds until they are due again."""
        if queue_id in self.queues:
            now, by, detail = self._monotonic(), _text(by), _text(detail)
            for first, last in _runs(offsets):
                self._add(JournalRow(now, event, queue_id, first, last, None, group, by, attempt, detail, delay_s))

    def note_check(
        self, topic: str, transaction_id: TransactionId, at: float, *, group: str, by: str, attempt: int, answer: str
    ) -> None:
        """Note that a client was asked for the outcome of a transaction at a time (of `now`), and its answer."""
        if topic in self.topics:
            of = (None, None, None, transaction_id, group, _text(by), attempt, _text(answer))
            self._add(JournalRow(at, JournalEvent.CHECK, *of))

    def now(self) -> float:
        """Return the time by the clock of entries."""
        return self._monotonic()

    def _add(self, entry: JournalRow) -> None:
        if len(self._waiting) < self._entries_max:
            self._waiting.append(entry)
        else:
            self.lose(1)

    # ---- for the writer

    def take_entries(self, count: int) -> list[JournalRow]:
        """Remove and return the oldest `count` entries.

        The last one may carry the number of lost ones, until `told`.
        """
        taken = [self._waiting.popleft() for _ in range(min(len(self._waiting), count))]
        if self._untold:
            taken.append(JournalRow(self._monotonic(), JournalEvent.LOST, entries=self._untold))
        return taken

    def told(self, entries: list[JournalRow]) -> None:
        """Note that these entries are on disk."""
        self._untold -= entries[-1].entries or 0

    def put_back(self, entries: list[JournalRow]) -> None:
        """Put entries back that could not be written now."""
        self._waiting.extendleft(entry for entry in reversed(entries) if entry.event is not JournalEvent.LOST)

    def lose(self, count: int) -> None:
        """Count lost entries. The next write records the number."""
        if count and not self._untold:
            _log.warning(
                "journal.lost",
                "entries of the journal are lost: `txmsg message trace` says so of the messages of this time",
            )
        self.lost += count
        self._untold += count

    def lose_all(self, entries: Iterable[JournalRow]) -> None:
        """Count these entries, which were taken, as lost."""
        self.lose(sum(entry.event is not JournalEvent.LOST for entry in entries))

    def forget_entries(self) -> None:
        """Drop all entries as lost: ids of queues may belong to other queues by now."""
        self.lose(len(self._waiting))
        self._waiting.clear()
        self.queues, self.topics = frozenset(), frozenset()


class JournalWriter:
    """Writes the journal of one broker, and reads which topics have one."""

    def __init__(self, pool: Pool, journal: JournalBuffer) -> None:
        self.written = 0
        """Entries written since the broker started."""
        self._pool = pool
        self._journal = journal
        self._soon = asyncio.Event()
        self._writing = asyncio.Lock()
        pool.incarnation.on_end(self._forget_entries)

    async def write_once(self) -> None:
        """Write the waiting entries. Raises BrokerUnavailable; entries that were not written then still wait."""
        async with self._writing:
            while entries := self._journal.take_entries(_ENTRIES_PER_STATEMENT):
                incarnation = self._pool.incarnation.id
                try:
                    await store.write(self._pool, incarnation, entries, self._journal.now)
                except (psycopg.DatabaseError, StorageError):
                    # They would be refused again, and no later entry would be written.
                    _log.exception(
                        "journal.refused", "%(entries)d entries of the journal are refused", entries=len(entries)
                    )
                    self._journal.lose_all(entries)
                    return
                except BaseException:
                    if self._pool.incarnation.id == incarnation:
                        self._journal.put_back(entries)
                    else:  # their queue ids belong to the incarnation that has ended
                        self._journal.lose_all(entries)
                    raise
                self._journal.told(entries)
                self.written += len(entries)

    async def look_once(self) -> None:
        """Read which topics have a journal."""
        async with same_incarnation(self._pool):
            found = await store.journaled(self._pool)
        self._journal.queues = frozenset(queue_id for _, queue_id in found)
        self._journal.topics = frozenset(topic for topic, _ in found)

    def look_soon(self) -> None:
        """Read at once which topics have a journal: one was changed."""
        self._soon.set()

    async def run(self) -> None:
        """Read and write until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            looking = repeat("reading which topics have a journal", self.look_once, _LOOK_S, soon=self._soon)
            tasks.create_task(looking, name="journal topics")
            tasks.create_task(repeat("writing the journal", self.write_once, _WRITE_S), name="journal writer")

    async def close(self, timeout_s: float) -> None:
        """Write the waiting entries, for at most timeout_s seconds."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.write_once()
        except (BrokerUnavailable, TimeoutError) as exc:
            _log.warning(
                "journal.unwritten",
                "%(entries)d entries of the journal were not written: %(error)s",
                entries=self._journal.waiting,
                error=exc or "no answer in time",
            )

    def _forget_entries(self, _: str) -> None:
        """Drop the entries: the database has gone back."""
        self._journal.forget_entries()
        self.look_soon()


def _runs(offsets: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield consecutive offsets as (first, last), at most RUN_MAX of them each."""
    run: list[int] = []
    for offset in sorted(offsets):
        if run and (offset != run[1] + 1 or offset - run[0] >= RUN_MAX):
            yield run[0], run[1]
            run = []
        run = [run[0] if run else offset, offset]
    if run:
        yield run[0], run[1]


def _text(text: str | None) -> str | None:
    """Return a foreign text as PostgreSQL can store it, and cut."""
    if text is None:
        return None
    return text[:_TEXT_LENGTH_MAX].replace("\0", "\\0").encode("utf-8", "replace").decode()
