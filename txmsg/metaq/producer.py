"""Appends messages as applications have them, to a log in this process or at an address."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Self, cast

from google_crc32c import value as crc32c

from txmsg.errors import InvalidMessage, MisuseError, shown
from txmsg.message import QUEUES_MAX, Message, new_transaction_id_bytes, now_us
from txmsg.metaq.access import LogAccess
from txmsg.metaq.acks import Acks
from txmsg.metaq.format.frame import Columns, encode
from txmsg.metaq.relay import Appendable, SpooledLog
from txmsg.metaq.spool import SIZE_BYTES_MAX as SPOOL_SIZE_BYTES_MAX
from txmsg.metaq.spool import Spool
from txmsg.metaq.store.log import Append
from txmsg.metaq.store.topics import TopicSettings
from txmsg.wire.headers import pack_headers

_COUNT_MAX = 65_536
_SIZE_BYTES_MAX = 16 * 1024 * 1024


class Place(NamedTuple):
    """Where a message stands. offset: -1 if it is in a spool, and will stand behind what is in the queue by then; also
    with Acks.NONE, which does not wait for it."""

    topic: str
    queue: int
    offset: int


class LogProducer:
    """Appends messages to the queues of their topics. Threads may share it.

    queues: how many each topic has that does not say it itself (`TopicSettings.write_queues`). Messages with an
    ordering key go to the queue that belongs to it, so that they stay in order; the others of one call to one queue,
    and those of the next call to the next.

    spool: a directory of this producer alone. Sends return when the messages are there, on this machine's disk
    (fdatasync), and a thread appends them to the log in the order of sends, as soon as the log takes them; also those
    that an earlier process has left, under the same ids. A crash, or an append without an answer, may append some of
    them twice: receivers tell by the id. `queues` holds for all topics then, which are not asked. spool_size_bytes_max:
    of what waits; above it sends raise Overloaded. Without a spool nothing needs to be closed.

    acks: what an append waits for, of a log that `open_log` gives; None: what topics and the server ask for.
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
            log = _Asking(cast(LogAccess, log), acks)
        self._spooled = None
        if spool is not None:
            if acks is Acks.NONE:
                raise MisuseError("a spool gives up what the log has: acks=Acks.NONE does not say that; leave it out")
            log = self._spooled = SpooledLog(log, Spool(Path(spool), size_bytes_max=spool_size_bytes_max))
        self._log = log
        self._queues = queues
        self._turns = itertools.count()

    def close(self) -> None:
        """Lets go of the spool; what waits in it is left for the next producer. The log stays open. Closing twice is
        fine."""
        if self._spooled is not None:
            self._spooled.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, message: Message, *, queue: int | None = None) -> Place:
        """Appends one message; see `send_many`, which is what to use for more."""
        return self.send_many([message], queue=queue)[0]

    def send_many(self, messages: Sequence[Message], *, queue: int | None = None) -> list[Place]:
        """Appends messages, all or none, and tells where each stands. On disk as each topic's flush promises; with a
        spool, on disk there.

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
            for place in range(append.payload.count):
                yield Place(append.topic, append.queue, first + place if first >= 0 else -1)


class _Asking:
    """A log whose appends ask for a level."""

    def __init__(self, log: LogAccess, acks: Acks) -> None:
        self._log = log
        self._acks = acks

    def append(self, appends: Sequence[Append]) -> list[int]:
        return self._log.append(appends, self._acks)

    def settings_of(self, topic: str) -> TopicSettings:
        return self._log.settings_of(topic)


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
