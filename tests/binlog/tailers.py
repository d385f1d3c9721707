"""Helpers for tests of the tailer: a Notify database seen from outside, a log, and tailers in threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from tests.waiting import until
from txmsg.binlog.config import TailerConfig
from txmsg.binlog.mirror import open_sink
from txmsg.binlog.sink import MirrorSink
from txmsg.binlog.tailer import Tailer, TailerState
from txmsg.errors import OffsetsMissing
from txmsg.metaq.store.reader import LogReader

WITHIN_S = 60.0
_TAILERS = "select 1 from pg_stat_activity where application_name like %s and datname = current_database()"


@dataclass
class Table:
    """The message table, written as a broker's batches write it: dense offsets, one transaction each."""

    url: str
    _queues: dict[tuple[str, int], int] = field(default_factory=dict)

    def query(self, statement: str, *args: object) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, autocommit=True, connect_timeout=10) as connection:
            cursor = connection.execute(statement.encode(), args)
            return cursor.fetchall() if cursor.description else []

    def topic(self, name: str, queues: int = 1, durability: str = "sync") -> list[int]:
        """Create a topic and return the ids of its queues."""
        ids = [
            row[0]
            for row in self.query(
                "with t as (insert into txmsg.topic (name, queue_count, ordered_queues, durability) "
                "values (%s, %s, %s, %s) returning id) "
                "insert into txmsg.queue (topic_id, number) select t.id, n from t, generate_series(0, %s - 1) n "
                "returning id",
                *(name, queues, queues, durability, queues),
            )
        ]
        self._queues |= {(name, number): queue for number, queue in enumerate(ids)}
        return ids

    def id_of(self, topic: str, number: int = 0) -> int:
        return self._queues[topic, number]

    def add(self, topic: str, count: int, *, number: int = 0, body: bytes = b"body") -> None:
        """Append so many messages to a queue in one transaction, using every column."""
        self.query(
            """
            with base as (select s.id as segment, coalesce(
                (select max(m.queue_offset) + 1 from txmsg.message m where m.segment = s.id and m.queue = %(queue)s),
                (select b.base from txmsg.segment_base b where b.segment = s.id and b.queue = %(queue)s), 0) as base
              from txmsg.segment s where s.state = 'open')
            insert into txmsg.message
                (segment, queue, queue_offset, transaction_id, n, key, tag, headers, body, born_at, ordering_key)
            select segment, %(queue)s, base + g, gen_random_uuid(), g %% 3, case when g %% 2 = 0 then 'ключ' || g end,
                   case when g %% 3 = 0 then 'created' end, case when g %% 5 = 0 then '\\x0a00'::bytea end,
                   %(body)s || convert_to((base + g)::text, 'UTF8'), now() - interval '1 s',
                   case when g %% 7 = 0 then 'order' || g end
              from base, generate_series(0, %(count)s - 1) g
            """.replace("%(queue)s", str(self.id_of(topic, number)))
            .replace("%(count)s", str(count))
            .replace("%(body)s", "%s")
            .replace("%%", "%%"),
            body,
        )

    def rotate(self) -> None:
        self.query("select txmsg.rotate((select id from txmsg.segment where state = 'open'))")
        self.query("select txmsg.add_segment()")

    def drop_segment(self, segment: int) -> None:
        """Drop a segment as retention does."""
        self.query("update txmsg.segment set dropping = true where id = %s", segment)
        for root in ("message", "rolled_back"):
            self.query(f"alter table txmsg.{root} detach partition txmsg.{root}_{segment}")
            self.query(f"drop table txmsg.{root}_{segment}")
        self.query("delete from txmsg.segment where id = %s", segment)

    def await_waiting_for_lock(self) -> None:
        """Return once a tailer waits for the lock of a queue."""
        until(lambda: bool(self.query("select 1 from pg_locks where locktype = 'advisory' and not granted")))

    def contents(self, topic: str, number: int = 0) -> list[tuple[Any, ...]]:
        """Return all columns of a queue in order, as `logged` returns them."""
        return self.query(
            "select queue_offset, transaction_id, n::int, key, tag, headers, body, born_at, stored_at, ordering_key "
            "from txmsg.message where queue = %s order by queue_offset",
            self.id_of(topic, number),
        )

    def await_no_tailer(self) -> None:
        """Return once the server knows that tailers have ended: until then they hold their locks and slots."""
        until(lambda: not self.query(_TAILERS, "txmsg tailer%"), why="a tailer still has a session")

    def is_tried_for(self) -> bool:
        """Return True if a tailer waits for the mirror's writer lock."""
        tries = f"{_TAILERS} and query like %s"
        return bool(self.query(tries, "txmsg tailer%", "%pg_try_advisory_lock%"))

    def free_slot(self) -> str:
        """Return the only slot, which must be unread."""
        self.await_no_tailer()
        [slot] = self.slots()
        return slot

    def drop_slot(self) -> None:
        self.query("select pg_drop_replication_slot(%s)", self.free_slot())

    def slots(self) -> list[str]:
        return [
            row[0]
            for row in self.query("select slot_name from pg_replication_slots where database = current_database()")
        ]


def logged(root: Path, topic: str, number: int = 0) -> list[tuple[Any, ...]]:
    """Return all columns of a queue of the log, in order."""
    from uuid import UUID

    queue = LogReader(root).queue(topic, number)
    offset, end = queue.range()
    found: list[tuple[Any, ...]] = []
    while offset < end:
        try:
            batches = queue.fetch(offset)
        except OffsetsMissing as exc:
            offset = exc.end
            continue
        for batch in batches:
            for row in batch.to_arrow().to_pylist():
                row["transaction_id"] = UUID(bytes=row["transaction_id"])
                names = ("offset", "transaction_id", "n", "key", "tag", "headers", "body", "born_at", "stored_at")
                found.append((*(row[name] for name in names), row["ordering_key"]))
            offset = batch.end_offset
    return found


class Running:
    """A tailer in a thread. `error` is the exception that ended it."""

    def __init__(self, url: str, root: Path, *, sink: Callable[[], MirrorSink] | None = None, **settings: Any) -> None:
        settings = {"position_s": 0.1, "compare_s": 0.3, "wait_s_max": 0.2, **settings}
        self.states: list[TailerState] = []
        self.error: BaseException | None = None
        self.root = root
        self.tailer = Tailer(
            TailerConfig(storage=url, **settings),
            sink or (lambda: open_sink(str(root))),
            on_state=self.states.append,
        )
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self.tailer.run()
        except BaseException as exc:  # noqa: BLE001 - the test looks at it
            self.error = exc

    def start(self, *, ready: bool = True) -> None:
        self._thread.start()
        if ready:
            self.await_state(TailerState.TAILING)

    def await_state(self, state: TailerState) -> None:
        until(lambda: state in self.states or not self._thread.is_alive())
        if self.error is not None:
            raise self.error

    def await_tailing(self) -> None:
        self.await_state(TailerState.TAILING)

    def await_log(self, condition: Callable[[], bool]) -> None:
        """Return once the log is as expected; raises the error that ended the tailer."""
        until(lambda: condition() or self.error is not None)
        if self.error is not None:
            raise self.error

    def failed(self) -> BaseException | None:
        """Return the error that ends the tailer when it is started."""
        self.start(ready=False)
        return self.await_end()

    def await_end(self) -> BaseException | None:
        self._thread.join(WITHIN_S)
        assert not self._thread.is_alive(), "the tailer goes on"
        return self.error

    def stop(self) -> None:
        """Stop the tailer cleanly; raises the error that ended it before."""
        if self._thread.is_alive():
            self.tailer.stop()
        self.await_end()
        if self.error is not None:
            raise self.error


@contextmanager
def tailing(url: str, root: Path, **settings: Any) -> Iterator[Running]:
    """Run a tailer within the block and stop it cleanly afterwards."""
    running = Running(url, root, **settings)
    running.start()
    try:
        yield running
    finally:
        running.stop()


def await_equal(table: Table, root: Path, topic: str, number: int = 0) -> None:
    """Return once the log equals the table, offset for offset, byte for byte."""
    wanted = table.contents(topic, number)

    def same() -> bool:
        return (root / "log.json").exists() and logged(root, topic, number) == wanted

    until(same, why=f"topic {topic} queue {number} of the log is not as the table")
