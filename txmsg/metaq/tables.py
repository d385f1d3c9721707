"""A range of a topic as Arrow, without a group: for queries, notebooks and exports. Reads only what is there now."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, NamedTuple
from weakref import finalize

import pyarrow as pa
import pyarrow.compute as pc

from txmsg.errors import StorageError, UnknownTopic
from txmsg.metaq.format.batch import SCHEMA, in_pieces, to_arrow
from txmsg.metaq.format.readable import HEADERS, header_maps, id_texts
from txmsg.metaq.interface import Fetched, LogAccess, LogQueue, offset_after, offsets_of
from txmsg.metaq.location import open_log
from txmsg.wire.start import Start

if TYPE_CHECKING:
    from txmsg.wire.body_keys import BodyKeys

TABLE_SCHEMA: Final = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("queue", pa.int32(), nullable=False),
        SCHEMA.field("offset"),
        pa.field("id", pa.string()),
        SCHEMA.field("key"),
        SCHEMA.field("tag"),
        SCHEMA.field("ordering_key"),
        pa.field("headers", HEADERS),
        SCHEMA.field("body"),
        SCHEMA.field("born_at"),
        SCHEMA.field("stored_at"),
    ]
)
"""The columns of a topic that is read as a table. id: as `ReceivedMessage.id`; headers: null if they cannot be read."""
_FETCH_SIZE_BYTES: Final = 8 * 1024 * 1024
_WAIT_S: Final = 30.0


class MessageSpan(NamedTuple):
    """Messages of a queue that follow each other: the offset of the first one, and the one after the last."""

    queue: LogQueue
    begin: int
    end: int


Skipped = Callable[[str], object]
"""Called with a text for messages that are missing or cannot be read, which are skipped."""


def read_arrow(
    log: str | os.PathLike[str] | LogAccess,
    topic: str,
    *,
    start: Start | None = None,
    until: Start | None = None,
    queues: Collection[int] | None = None,
    keys: BodyKeys | None = None,
    on_missing: Skipped | None = None,
) -> pa.RecordBatchReader:
    """Return the messages of a topic that a log keeps now, as a stream of Arrow batches. Schema: TABLE_SCHEMA.

    One queue after the other, each in order. start, until: where each queue begins (default: the first message), and
    before what it ends (default: messages that arrive after this call). A time means the first message stored then or
    later, so adjacent ranges contain each message once. queues: only these. keys: decrypts bodies of erasable topics.
    It needs memory for a few batches, unless the reader is asked for all of them.

    Raises UnknownTopic for a topic or queue that does not exist. Reading raises OffsetOutOfRange for messages that are
    no longer kept, OffsetsMissing for those that the log never had, and UnreadableMessage for one that cannot be read,
    after all before it; with on_missing these are skipped, and it is called with a text that says which.
    """
    with ExitStack() as opened:
        access = opened.enter_context(open_log(log)) if isinstance(log, str | os.PathLike) else log
        spans = spans_of(access, topic, start=start, until=until, queues=queues)
        closing = opened.pop_all()

    def batches() -> Iterator[pa.RecordBatch]:
        with closing:
            for span in spans:
                yield from read_span(access, span, keys=keys, on_missing=on_missing)

    found = batches()
    finalize(found, closing.close)  # one that was never begun has no `with` to leave
    return pa.RecordBatchReader.from_batches(TABLE_SCHEMA, found)


def spans_of(
    log: LogAccess,
    topic: str,
    *,
    start: Start | None = None,
    until: Start | None = None,
    queues: Collection[int] | None = None,
) -> list[MessageSpan]:
    """Return the range of each queue, as `read_arrow` reads it. Raises UnknownTopic."""
    there = log.queues_of(topic)
    if not there:
        names = ", ".join(sorted(log.topics())) or "none"
        raise UnknownTopic(f"topic {topic!r} is not in this log: its topics are {names}")
    if missing := sorted(set(queues or ()) - set(there)):
        raise UnknownTopic(f"topic {topic!r} has no queue {missing[0]}: its queues are {', '.join(map(str, there))}")
    chosen = [LogQueue(topic, number) for number in (there if queues is None else sorted(set(queues)))]
    kept = log.ranges(chosen)
    begins = offsets_of(log, chosen, start or Start.earliest())
    # Ends are fixed before the first batch is read: a topic that grows faster than it is read would have no end.
    ends = offsets_of(log, chosen, until or Start.latest())
    return [
        MessageSpan(queue, begins[queue], max(begins[queue], min(ends[queue], kept[queue].end))) for queue in chosen
    ]


def read_span(
    log: LogAccess, span: MessageSpan, *, keys: BodyKeys | None = None, on_missing: Skipped | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a range. Schema and errors: those of `read_arrow`."""
    offset = span.begin
    while offset < span.end:
        answer = log.fetch({span.queue: offset}, size_bytes_max=_FETCH_SIZE_BYTES, wait_s=_WAIT_S)
        if not answer:
            raise StorageError(
                f"the log gives nothing at offset {offset} of queue {span.queue.queue} of {span.queue.topic!r}, which "
                f"ends at {span.end}: is it well? See `txmsg metaq topics`"
            )
        [found] = answer
        if found.error is not None:
            offset = _passed_over(found, offset, on_missing)
            continue
        for piece in in_pieces(found.batches):
            table = to_arrow(piece)
            offset = piece[-1].end_offset
            # A fetch returns whole batches, and the last one may reach beyond the end.
            if offset > span.end:
                table = table.filter(pc.less(table["offset"], span.end))
            if keys is not None:
                table = keys.decrypt_arrow(span.queue.topic, table)
            for batch in table.to_batches():
                yield _readable(span.queue, batch)
            if offset >= span.end:
                break


def _passed_over(found: Fetched, offset: int, on_missing: Skipped | None) -> int:
    """Return the offset at which reading continues."""
    error = found.error
    assert error is not None
    following = None if on_missing is None else offset_after(error, offset)
    if on_missing is None or following is None:
        raise error
    on_missing(str(error))
    return following


def _readable(queue: LogQueue, batch: pa.RecordBatch) -> pa.RecordBatch:
    count = len(batch)
    made = {
        "topic": pa.repeat(pa.scalar(queue.topic, pa.string()), count),
        "queue": pa.repeat(pa.scalar(queue.queue, pa.int32()), count),
        "id": id_texts(batch["transaction_id"], batch["n"]),
        "headers": header_maps(batch["headers"]),
    }
    columns = [made[name] if name in made else batch[name] for name in TABLE_SCHEMA.names]
    return pa.RecordBatch.from_arrays(columns, schema=TABLE_SCHEMA)
