"""The broker of a test: its address, its messages, and waiting for the end of its work."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import psycopg

from txmsg.client.sending.unreported import wait_for_all, wait_no_more
from txmsg.errors import MisuseError
from txmsg.message import ReceivedMessage, check_name, us_of_datetime
from txmsg.testing.clock import Clock
from txmsg.testing.host import BrokerHost
from txmsg.testing.progress import Progress, Wanted, progress_of
from txmsg.wire.codec import unpack_headers

_LOOK_S = 0.02
_SOON_S = 0.1
_DONE = object()


class Broker:
    """A broker with its own Notify database, both new for this test.

    address: HOST:PORT, the same in all tests of a run. storage: the URL of the Notify database. clock: its clock.
    timeout_s: the default time limit of waiting.
    """

    def __init__(
        self, host: BrokerHost, address: str, storage: str, connection: psycopg.Connection[Any], *, timeout_s: float
    ) -> None:
        self.address = address
        self.storage = storage
        self._host = host
        self._connection = connection
        self.clock = Clock(connection)
        self._timeout_s = timeout_s
        wait_for_all(self)

    # ---- life

    def start(self) -> None:
        """Start the broker after `stop` or `kill`, at the same address and with the same database."""
        self._host.start_broker(self.storage, self.address)

    def stop(self) -> None:
        """Stop the broker gracefully. Calls of producers then fail after their timeout."""
        self._host.stop_broker()

    def kill(self) -> None:
        """End the broker as a crash would. `start` then takes a second, because it starts a new process."""
        self._host.kill()

    # ---- what it holds

    def messages(self, topic: str) -> list[ReceivedMessage]:
        """Return the committed messages of a topic, by queue and offset, received or not; [] for an unknown topic."""
        return self._read(_MESSAGES, {"topic": check_name("topic", topic)})

    def dead_letters(self, group: str) -> list[ReceivedMessage]:
        """Return the messages that the group could not process. `attempt` is the number of deliveries."""
        return self._read(_DEAD_LETTERS, {"group": check_name("consumer group", group)})

    def _read(self, statement: str, parameters: dict[str, str]) -> list[ReceivedMessage]:
        rows = self._connection.execute(statement.encode(), parameters)
        return [
            ReceivedMessage(
                topic=topic,
                body=body,
                key=key,
                tag=tag,
                headers=unpack_headers(headers),
                queue=queue,
                offset=offset,
                attempt=attempt,
                id_bytes=transaction_id.bytes,
                n=n,
                born_at_us=us_of_datetime(born_at),
                stored_at_us=us_of_datetime(stored_at),
                ordering_key=ordering_key,
                generation=generation,
            )
            for (
                topic,
                body,
                key,
                tag,
                headers,
                queue,
                offset,
                attempt,
                transaction_id,
                n,
                born_at,
                stored_at,
                ordering_key,
                generation,
            ) in rows
        ]

    # ---- waiting

    def delivered(
        self, group: str, topic: str, count: int = 1, *, timeout_s: float | None = None, jump: bool = False
    ) -> None:
        """Wait until the group has acknowledged `count` messages of the topic in total; otherwise fail with a list.

        timeout_s: default 10, or the value of `--txmsg-timeout-s`. jump: whenever nothing but a due time is left to
        wait for (a check-back, a retry, a delay), the clock is advanced to it; never while a check-back is being
        answered.
        """
        __tracebackhide__ = True
        wait(self._until_delivered(group, topic, count, timeout_s, jump))

    async def delivered_async(
        self, group: str, topic: str, count: int = 1, *, timeout_s: float | None = None, jump: bool = False
    ) -> None:
        """The same for a coroutine: consumers and producers on its loop keep running."""
        __tracebackhide__ = True
        await wait_async(self._until_delivered(group, topic, count, timeout_s, jump))

    def wait_until_idle(self, group: str, *, dead: int = 0, timeout_s: float | None = None, jump: bool = False) -> None:
        """Wait until the group has acknowledged all messages of its topics; otherwise fail with a list.

        Undecided and delayed messages of these topics count as remaining. dead: the expected number of its dead
        letters; one more fails at once. timeout_s, jump: as in `delivered`.
        """
        __tracebackhide__ = True
        wait(self._until_idle([(group, None)], dead, timeout_s, jump))

    async def wait_until_idle_async(
        self, group: str, *, dead: int = 0, timeout_s: float | None = None, jump: bool = False
    ) -> None:
        """The same for a coroutine: consumers and producers on its loop keep running."""
        __tracebackhide__ = True
        await wait_async(self._until_idle([(group, None)], dead, timeout_s, jump))

    def _until_delivered(
        self, group: str, topic: str, count: int, timeout_s: float | None, jump: bool
    ) -> Iterator[None]:
        check_name("topic", topic)

        def is_done(all_progress: list[Progress]) -> bool:
            return sum(progress.acknowledged for progress in all_progress) >= count

        what = f"group {group!r} has not acknowledged {count} of topic {topic!r}"
        return self._looks(what, [(group, topic)], is_done, timeout_s, jump)

    def _until_idle(
        self,
        wanted: Sequence[Wanted],
        dead: int,
        timeout_s: float | None,
        jump: bool,
        *,
        elsewhere: Callable[[], list[Progress]] = list,
    ) -> Iterator[None]:
        """Return looks that end when the groups are idle.

        elsewhere: progress of groups of other sources, such as a log.
        """
        who = f"group {wanted[0][0]!r}" if len(wanted) == 1 else "the application"

        def is_done(all_progress: list[Progress]) -> bool:
            __tracebackhide__ = True
            died = sum(len(progress.dead) for progress in all_progress)
            if died > dead:
                raise AssertionError(_told(f"{who} has {died} dead letters, {dead} were expected", all_progress))
            left = any(progress.waiting or progress.late for progress in all_progress)
            is_known = bool(all_progress) or all(topic is not None for _, topic in wanted)
            return is_known and not left and died == dead

        return self._looks(f"{who} is not idle", wanted, is_done, timeout_s, jump, elsewhere=elsewhere)

    def _looks(
        self,
        what: str,
        wanted: Sequence[Wanted],
        is_done: Callable[[list[Progress]], bool],
        timeout_s: float | None,
        jump: bool,
        *,
        elsewhere: Callable[[], list[Progress]] = list,
    ) -> Iterator[None]:
        """Check progress, yielding before each next look; end when done. Raises AssertionError after `timeout_s`."""
        __tracebackhide__ = True
        for group, _ in wanted:
            check_name("consumer group", group)
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        if timeout_s <= 0:
            raise MisuseError(f"timeout_s={timeout_s} must be more than 0 seconds")
        deadline = time.monotonic() + timeout_s
        while True:
            # Elsewhere is read before and after: a handler there may send here before it is done, and the reverse.
            was_busy = any(progress.waiting for progress in elsewhere())
            all_progress = [*progress_of(self._connection, wanted), *elsewhere()]
            if is_done(all_progress) and not was_busy:
                return
            now = time.monotonic()
            if now >= deadline:
                found = _told(f"{what} within {timeout_s:g} s", all_progress)
                raise AssertionError(found if all_progress else f"{found}\n{self._nothing_of(*wanted[0])}")
            if jump:
                self._jump(all_progress)
            yield

    def _jump(self, all_progress: list[Progress]) -> None:
        """Advance the clock to the next due time, unless other work is in progress."""
        dues_s = [late.due_in_s for progress in all_progress for late in progress.late if late.due_in_s is not None]
        if any(progress.waiting for progress in all_progress) or not dues_s or min(dues_s) <= _SOON_S:
            return
        if any(progress.undecided for progress in all_progress) and self._host.is_checking():
            return
        self.clock.advance(seconds=min(dues_s) + 0.001)

    def _nothing_of(self, group: str, topic: str | None) -> str:
        """Return a hint with the existing names, for a misspelt one."""
        table, what, wanted = ("topic", "topic", topic) if topic else ("consumer_group", "consumer group", group)
        rows = self._connection.execute(f"select name from txmsg.{table} order by name".encode())
        names = ", ".join(repr(name) for (name,) in rows) or "none"
        hint = "nothing was sent to it" if topic else "none of its consumers has asked for messages"
        return f"the broker knows no {what} {wanted!r}, for {hint}; it knows {names}"

    def close(self) -> None:
        """Stop the broker at the end of the test, if it still runs. For the fixture."""
        wait_no_more(self)
        with suppress(RuntimeError):  # The broker died in the test, which has failed by itself if that matters to it.
            self._host.stop_broker()


def wait(looks: Iterator[None]) -> None:
    """Block until the looks end."""
    __tracebackhide__ = True
    # Polled: the broker, logs and the test's own handlers have no event in common.
    for _ in looks:
        time.sleep(_LOOK_S)


async def wait_async(looks: Iterator[None]) -> None:
    """The same for a coroutine."""
    __tracebackhide__ = True
    while await asyncio.to_thread(next, looks, _DONE) is not _DONE:  # noqa: ASYNC110 - there is no event for it
        await asyncio.sleep(_LOOK_S)


def _told(what: str, all_progress: list[Progress]) -> str:
    of_group = len({progress.group for progress in all_progress}) > 1
    lines = [
        f"group {progress.group!r}, {line}" if of_group and n == 0 else line
        for progress in all_progress
        for n, line in enumerate(progress.lines())
    ]
    return "\n".join([what, *lines])


_MESSAGES = """
select t.name, m.body, m.key, m.tag, m.headers, q.number, m.queue_offset, 1, m.transaction_id, m.n, m.born_at,
       m.stored_at, m.ordering_key, 0
  from txmsg.message m join txmsg.queue q on q.id = m.queue join txmsg.topic t on t.id = q.topic_id
 where t.name = %(topic)s order by q.number, m.queue_offset
"""
_DEAD_LETTERS = """
select t.name, d.body, d.key, d.tag, d.headers, q.number, d.queue_offset, d.attempts, d.transaction_id, d.n, d.born_at,
       d.stored_at, d.ordering_key, d.generation
  from txmsg.dead_letter d join txmsg.consumer_group g on g.id = d.group_id
  join txmsg.queue q on q.id = d.queue_id join txmsg.topic t on t.id = q.topic_id
 where g.name = %(group)s order by d.died_at, q.number, d.queue_offset
"""
