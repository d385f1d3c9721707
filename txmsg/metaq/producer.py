"""Appends messages as applications have them, to a log in this process or at an address."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from google_crc32c import value as crc32c

from txmsg.errors import MisuseError
from txmsg.message import QUEUES_MAX, Message
from txmsg.metaq.format.frame import encode
from txmsg.metaq.format.messages import columns_of
from txmsg.metaq.store.placing import Append
from txmsg.metaq.store.topics import TopicSettings

__all__ = ["LogProducer", "Place"]


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

    queues: how many each topic has. Messages with an ordering key go to the queue that belongs to it, so that they stay
    in order; the others of one call to one queue, and those of the next call to the next.
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

        queue: the one to append to, whatever the ordering keys. Raises InvalidMessage for a delayed message, and what
        the log raises.
        """
        turn = next(self._turns) % self._queues
        by_queue: dict[tuple[str, int], list[int]] = {}
        for place, message in enumerate(messages):
            number = self._queue_of(message, turn) if queue is None else queue
            by_queue.setdefault((message.topic, number), []).append(place)
        appends: list[Append] = []
        for (topic, number), places in by_queue.items():
            compression = self._log.settings_of(topic).compression
            for columns in columns_of([messages[place] for place in places]):
                appends.append(Append(topic, number, encode(columns, compression)))
        offsets = self._offsets(appends)
        found = {place: next(offsets) for places in by_queue.values() for place in places}
        return [found[place] for place in range(len(messages))]

    def _offsets(self, appends: list[Append]) -> Iterator[Place]:
        for each, first in zip(appends, self._log.append(appends), strict=True):
            for offset in range(first, first + each.payload.count):
                yield Place(each.topic, each.queue, offset)

    def _queue_of(self, message: Message, turn: int) -> int:
        if message.ordering_key is None:
            return turn
        return int(crc32c(message.ordering_key.encode())) % self._queues
