"""Appends messages as applications have them, to a log in this process or at an address."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from google_crc32c import value as crc32c

from txmsg.errors import InvalidMessage, MisuseError
from txmsg.message import QUEUES_MAX, Message, new_transaction_id_bytes, now_us
from txmsg.metaq.format.frame import Columns, encode
from txmsg.metaq.store.log import Append
from txmsg.metaq.store.topics import TopicSettings
from txmsg.wire.headers import pack_headers

_COUNT_MAX = 65_536
_SIZE_BYTES_MAX = 16 * 1024 * 1024


class Appendable(Protocol):
    """What is appended to: a `Log`, or what `open_log` gives."""

    def append(self, appends: Sequence[Append]) -> list[int]: ...

    def settings_of(self, topic: str) -> TopicSettings: ...


class Place(NamedTuple):
    """Where a message stands."""

    topic: str
    queue: int
    offset: int


class LogProducer:
    """Appends messages to the queues of their topics. Threads may share it.

    queues: how many each topic has that does not say it itself (`TopicSettings.write_queues`). Messages with an
    ordering key go to the queue that belongs to it, so that they stay in order; the others of one call to one queue,
    and those of the next call to the next.
    """

    def __init__(self, log: Appendable, *, queues: int = 4) -> None:
        if not 1 <= queues <= QUEUES_MAX:
            raise MisuseError(f"queues={queues} of a LogProducer: 1 to {QUEUES_MAX} are allowed")
        self._log = log
        self._queues = queues
        self._turns = itertools.count()

    def send(self, message: Message, *, queue: int | None = None) -> Place:
        """Appends one message; see `send_many`, which is what to use for more."""
        return self.send_many([message], queue=queue)[0]

    def send_many(self, messages: Sequence[Message], *, queue: int | None = None) -> list[Place]:
        """Appends messages, all or none, and tells where each stands. On disk as each topic's flush promises.

        queue: the one to append to, whatever the ordering keys and the number of queues. Raises InvalidMessage for a
        delayed message, and what the log raises.
        """
        turn = next(self._turns)
        settings = {topic: self._log.settings_of(topic) for topic in {message.topic for message in messages}}
        by_queue: dict[tuple[str, int], list[int]] = {}
        for place, message in enumerate(messages):
            count = settings[message.topic].write_queues or self._queues
            number = _queue_of(message, turn, count) if queue is None else queue
            by_queue.setdefault((message.topic, number), []).append(place)
        appends: list[Append] = []
        for (topic, number), places in by_queue.items():
            compression = settings[topic].compression
            for columns in columns_of([messages[place] for place in places]):
                appends.append(Append(topic, number, encode(columns, compression)))
        offsets = self._offsets(appends)
        found = {place: next(offsets) for places in by_queue.values() for place in places}
        return [found[place] for place in range(len(messages))]

    def _offsets(self, appends: list[Append]) -> Iterator[Place]:
        for append, first in zip(appends, self._log.append(appends), strict=True):
            for offset in range(first, first + append.payload.count):
                yield Place(append.topic, append.queue, offset)


def _queue_of(message: Message, turn: int, count: int) -> int:
    if message.ordering_key is None:
        return turn % count
    return int(crc32c(message.ordering_key.encode())) % count


def columns_of(messages: Sequence[Message]) -> Iterator[Columns]:
    """Messages of one topic, each with a new id. What is too much for one frame becomes several.

    Raises InvalidMessage for a delayed message.
    """
    for message in messages:
        if message.is_delayed:
            raise InvalidMessage(
                f"a message for topic {message.topic!r} is delayed, which a log does not support: append it when it "
                "is due"
            )
    return map(_columns, _batches(messages))


def _batches(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    start = size = 0
    for place, message in enumerate(messages):
        size += len(message.body)
        if place > start and (size > _SIZE_BYTES_MAX or place - start == _COUNT_MAX):
            yield messages[start:place]
            start, size = place, len(message.body)
    yield messages[start:]


def _columns(messages: Sequence[Message]) -> Columns:
    return Columns(
        bodies=[message.body for message in messages],
        stored_at_us=[now_us()],
        transaction_ids=b"".join(new_transaction_id_bytes() for _ in messages),
        keys=[message.key or "" for message in messages],
        tags=[message.tag or "" for message in messages],
        ordering_keys=[message.ordering_key or "" for message in messages],
        headers=[pack_headers(message.headers) for message in messages],
    )
