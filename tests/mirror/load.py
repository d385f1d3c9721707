"""Load for a mirror: transactions of all sizes, committed one after the other into the queues of a topic."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg.errors import OperationalError

from tests.mirror.rows import Stored, store, written

_SIZES = (1, 1, 2, 5, 20, 100)


class Load:
    """Writes into `queues` queues of a topic, each message at its offset. Only one writer at a time."""

    def __init__(self, url: str, topic: str, queues: int, seed: int, *, ends: dict[int, int] | None = None) -> None:
        self._url = url
        self._topic = topic
        self._rng = random.Random(seed)
        self.ends = dict.fromkeys(range(queues), 0) | (ends or {})
        """The next offset of each queue."""

    @property
    def count(self) -> int:
        """Return the number of messages written."""
        return sum(self.ends.values())

    def write(self, transactions: int = 1, *, segment: int = 1) -> None:
        """Write so many transactions."""
        for _ in range(transactions):
            ends = dict(self.ends)
            messages: list[Stored] = []
            for _ in range(self._rng.choice(_SIZES)):
                queue = self._rng.choice(list(ends))
                messages.append(written(self._topic, queue, ends[queue]))
                ends[queue] += 1
            store(self._url, messages, segment=segment)
            self.ends = ends

    @contextmanager
    def going_on(self, pause_s: float = 0.002) -> Iterator[None]:
        """Write continuously on a thread; retry while the database is down."""
        ended = threading.Event()
        failed: list[BaseException] = []

        def work() -> None:
            try:
                while not ended.wait(pause_s):
                    self._write_or_look()
            except BaseException as exc:  # noqa: BLE001 - a thread's root: the test raises it
                failed.append(exc)

        thread = threading.Thread(target=work, name="load")
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
        if failed:
            raise failed[0]

    def _write_or_look(self) -> None:
        """Commit a transaction. If the database fails meanwhile, look up later whether it was committed."""
        state = self._rng.getstate()
        try:
            self.write()
        except OperationalError:
            self._rng.setstate(state)
            deadline = time.monotonic() + 60
            while True:
                try:
                    with psycopg.connect(self._url) as connection:
                        [(stored,)] = connection.execute("select count(*) from txmsg.message")
                    break
                except OperationalError:
                    assert time.monotonic() < deadline, "the database does not come back"
                    time.sleep(0.05)
            if stored != self.count:  # it was committed: take the same steps without writing
                self._skip()

    def _skip(self) -> None:
        for _ in range(self._rng.choice(_SIZES)):
            self.ends[self._rng.choice(list(self.ends))] += 1
