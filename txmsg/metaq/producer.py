"""Appends messages of applications to a log, in this process or at an address."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Self, cast

from google_crc32c import value as crc32c

from txmsg.errors import MisuseError, shown
from txmsg.message import QUEUES_MAX, Message, new_transaction_id_bytes, now_us
from txmsg.metaq.acks import Acks
from txmsg.metaq.format.frame import FrameColumns, encode
from txmsg.metaq.interface import ColumnsFor, LogAccess, TakesColumns
from txmsg.metaq.relay import Appendable, SpooledLog
from txmsg.metaq.spool import SIZE_BYTES_MAX as SPOOL_SIZE_BYTES_MAX
from txmsg.metaq.spool import Spool
from txmsg.metaq.store.log import Append
from txmsg.metaq.store.topics import TopicSettings
from txmsg.wire.headers import pack_headers

_COUNT_MAX = 65_536
_SIZE_BYTES_MAX = 16 * 1024 * 1024


NOT_YET: Final = -1
"""The offset of a message that is not in its queue yet."""


class Place(NamedTuple):
    """The position of a message.

    offset: -1 for a message in a spool, which gets its offset later; with Acks.NONE, which does not wait for it; and
    for a delayed message, which gets one when it is due. number: of a delayed message, for the log's `recall`, which
    cancels everything sent together for one queue and time.
    """

    topic: str
    queue: int
    offset: int
    number: int | None = None


class LogProducer:
    """Appends messages to the queues of their topics. Threads may share it.

    queues: the number of queues of topics that do not set it themselves (`TopicSettings.write_queues`). Messages with
    an ordering key go to the key's queue, so that they stay in order; the others of one call go to one queue, and those
    of the next call to the next.

    spool: a directory of this producer alone. Sends return when the messages are there, on this machine's disk
    (fdatasync), and a thread appends them to the log in the order of sends as soon as the log accepts them, including
    those of an earlier process, under the same ids. A crash, or an append without an answer, may append some of them
    twice: receivers recognise them by the id. `queues` then applies to all topics, because the log is not asked.
    spool_size_bytes_max: the limit of waiting messages; above it sends raise Overloaded. Without a spool nothing needs
    to be closed.

    acks: what an append waits for, for a log from `open_log`; None: what topics and the server require. Kafka always
    waits for all in-sync copies, and refuses levels that this does not satisfy.
    """

    def __init__(
        self,
        log: Appendable,
        *,
        queues: int = 4,
        spool: Path | str | None = None,
        spool_size_bytes_max: int = SPOOL_SIZE_BYTES_MAX,
        acks: Acks | None = None,
    ) -> None:
        if not 1 <= queues <= QUEUES_MAX:
            raise MisuseError(f"queues={queues} of a LogProducer: 1 to {QUEUES_MAX} are allowed")
        if acks is not None:
            if not isinstance(acks, Acks):
                raise MisuseError(f"acks={shown(acks)} of a LogProducer: give one of txmsg.metaq.Acks, or None")
            if spool is not None or not isinstance(log, TakesColumns):  # which is asked by each call
                log = _LogWithAcks(cast(LogAccess, log), acks)
        self._spooled = None
        if spool is not None:
            if acks is Acks.NONE:
                raise MisuseError("a spool gives up what the log has: acks=Acks.NONE does not say that; leave it out")
            log = self._spooled = SpooledLog(log, Spool(Path(spool), size_bytes_max=spool_size_bytes_max))
        self._log = log
        self._columns_log = log if isinstance(log, TakesColumns) else None
        self._acks = acks
        self._queues = queues
        # The queue changes per call, not per message, so the messages of a call are one batch.
        self._turns = itertools.count()

    def close(self) -> None:
        """Release the spool; its messages are left for the next producer. The log stays open. Idempotent."""
        if self._spooled is not None:
            self._spooled.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, message: Message, *, queue: int | None = None) -> Place:
        """Append one message; for more, use `send_many`."""
        return self.send_many([message], queue=queue)[0]

    def send_many(self, messages: Sequence[Message], *, queue: int | None = None) -> list[Place]:
        """Append all messages or none, and return their positions.

        On disk as each topic's flush promises; with a spool, on disk there. queue: the queue to append to, regardless
        of ordering keys and the number of queues. A delayed message (`deliver_at`, `deliver_after`) waits in the log,
        on disk, and is appended when it is due. Raises InvalidMessage for one that is due later than the log's
        `delay_max_s` allows, and what the log raises.
        """
        turn = next(self._turns)
        settings = self._settings_of({message.topic for message in messages})
        now = now_us()
        by_queue: dict[tuple[str, int, int | None], list[int]] = {}
        for place, message in enumerate(messages):
            count = settings[message.topic].write_queues or self._queues
            number = _queue_of(message, turn, count) if queue is None else queue
            by_queue.setdefault((message.topic, number, _due_at_us(message, now)), []).append(place)
        batches = [
            ColumnsFor(topic, number, _columns(batch, now, is_delayed=due_at_us is not None), due_at_us)
            for (topic, number, due_at_us), places in by_queue.items()
            for batch in _batches([messages[place] for place in places])
        ]
        firsts = self._append(batches, settings)
        stand = (place for batch, first in zip(batches, firsts, strict=True) for place in _stand(batch, first))
        found = {place: next(stand) for places in by_queue.values() for place in places}
        return [found[place] for place in range(len(messages))]

    def _settings_of(self, topics: Iterable[str]) -> dict[str, TopicSettings]:
        if self._columns_log is not None:  # asking would be a round trip without a useful answer
            return dict.fromkeys(topics, _NO_SETTINGS)
        return {topic: self._log.settings_of(topic) for topic in topics}

    def _append(self, batches: Sequence[ColumnsFor], settings: Mapping[str, TopicSettings]) -> list[int]:
        """Append batches, and return the first offset of each."""
        if self._columns_log is not None:
            return self._columns_log.append_columns(batches, self._acks)
        return self._log.append(
            [
                Append(topic, queue, encode(columns, settings[topic].compression), due_at_us=due_at_us)
                for topic, queue, columns, due_at_us in batches
            ]
        )


class _LogWithAcks:
    """A log whose appends ask for a level."""

    def __init__(self, log: LogAccess, acks: Acks) -> None:
        self._log = log
        self._acks = acks

    def append(self, appends: Sequence[Append]) -> list[int]:
        return self._log.append(appends, self._acks)

    def settings_of(self, topic: str) -> TopicSettings:
        return self._log.settings_of(topic)


_NO_SETTINGS: Final = TopicSettings()


def _stand(batch: ColumnsFor, first: int) -> Iterator[Place]:
    """Return the positions of a batch's messages, given the first offset that the log has returned."""
    is_delayed = batch.due_at_us is not None
    number = first if is_delayed and first >= 0 else None
    for place in range(len(batch.columns.body)):
        offset = NOT_YET if is_delayed or first < 0 else first + place
        yield Place(batch.topic, batch.queue, offset, number)


def _queue_of(message: Message, turn: int, count: int) -> int:
    if message.ordering_key is None:
        return turn % count
    # A checksum and not `hash`, which differs from process to process: a key has one queue for all producers.
    return int(crc32c(message.ordering_key.encode())) % count


def _due_at_us(message: Message, now: int) -> int | None:
    """Return the time at which a delayed message is due; None: it is not delayed, or due by now."""
    if not message._is_delayed:
        return None
    due_at_us = message._deliver_at_us(now)
    return due_at_us if due_at_us > now else None


def _batches(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    start = size = 0
    for place, message in enumerate(messages):
        size += len(message.body)
        if place > start and (size > _SIZE_BYTES_MAX or place - start == _COUNT_MAX):
            yield messages[start:place]
            start, size = place, len(message.body)
    yield messages[start:]


def _columns(messages: Sequence[Message], now: int, *, is_delayed: bool) -> FrameColumns:
    """Return columns of messages, each with a new id.

    Delayed ones are stored when they are due, so they name their birth.
    """
    return FrameColumns(
        body=[message.body for message in messages],
        stored_at_us=[now],
        born_at_us=[now] * len(messages) if is_delayed else (),
        transaction_id=b"".join(new_transaction_id_bytes() for _ in messages),
        key=[message.key or "" for message in messages],
        tag=[message.tag or "" for message in messages],
        ordering_key=[message.ordering_key or "" for message in messages],
        headers=[pack_headers(message.headers) for message in messages],
    )
