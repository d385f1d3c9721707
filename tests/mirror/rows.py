"""Messages in a table and in a log: written by plain SQL, and appended as a tailer would."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import psycopg

from txmsg.message import datetime_of_us
from txmsg.metaq.format.frame import Compression, FrameColumns, Payload, encode, hole
from txmsg.metaq.store.log import Append, Log, LogConfig

_INSERT = """
copy txmsg.message (segment, queue, queue_offset, transaction_id, n, key, tag, ordering_key, headers, body, born_at,
                    stored_at) from stdin"""


class Stored(NamedTuple):
    """A message at its position."""

    topic: str
    queue: int
    offset: int
    id_bytes: bytes
    n: int
    key: str | None
    tag: str | None
    ordering_key: str | None
    headers: bytes | None
    body: bytes
    born_at_us: int
    stored_at_us: int
    """Microseconds since 1970."""


def written(topic: str, queue: int, offset: int) -> Stored:
    """Return a message that uses every column, or few, depending on its offset; no two are equal."""
    rng = random.Random(f"{topic} {queue} {offset}")
    rich = offset % 3 != 0
    at_us = 1_750_000_000_000_000 + offset * 1000
    return Stored(
        topic,
        queue,
        offset,
        rng.randbytes(16),
        offset % 5 if rich else 0,
        f"ключ-{offset}" if rich else None,
        "paid" if offset % 2 else None,
        f"order-{offset % 4}" if rich else None,
        b"\x0a\x06\x0a\x01h\x12\x011" if rich else None,
        rng.randbytes(rng.choice([0, 1, 100, 2000])),
        at_us - 7,
        at_us,
    )


def make_queues(url: str, topic: str, count: int) -> None:
    """Create a topic with so many queues."""
    with psycopg.connect(url) as connection:
        [(id,)] = connection.execute(
            "insert into txmsg.topic (name, queue_count, ordered_queues) values (%s, %s, %s) returning id",
            (topic, count, count),
        )
        connection.execute(
            "insert into txmsg.queue (topic_id, number) select %s, n from generate_series(0, %s) n", (id, count - 1)
        )


def store(url: str, messages: Iterable[Stored], *, segment: int = 1) -> None:
    """Insert rows into the table."""
    with psycopg.connect(url) as connection:
        ids = {
            (topic, number): id
            for topic, number, id in connection.execute(
                "select t.name, q.number, q.id from txmsg.topic t join txmsg.queue q on q.topic_id = t.id"
            )
        }
        with connection.cursor() as cursor, cursor.copy(_INSERT) as copy:
            for message in messages:
                copy.write_row(
                    (
                        segment,
                        ids[message.topic, message.queue],
                        message.offset,
                        UUID(bytes=message.id_bytes),
                        *message[4:10],
                        _moment(message.born_at_us),
                        _moment(message.stored_at_us),
                    )
                )


def lose_messages(url: str) -> None:
    """Drop segment 1 as retention does: its messages are gone, and segment 2 is written."""
    with psycopg.connect(url) as connection:
        connection.execute("select txmsg.rotate(1)")
        connection.execute("update txmsg.segment set dropping = true where id = 1")
        connection.execute("delete from txmsg.message")


def _moment(us: int) -> str:
    return datetime_of_us(us).isoformat()


def append(
    root: Path,
    messages: Sequence[Stored],
    *,
    frame_size: int = 7,
    compression: Compression = Compression.NONE,
    config: LogConfig | None = None,
) -> None:
    """Append frames to a log, of at most so many messages; a gap in the offsets is marked as a hole."""
    with Log(root, config) as log:
        ends: dict[tuple[str, int], int] = {}
        for (topic, queue), run in groupby(messages, key=lambda each: (each.topic, each.queue)):
            rows = list(run)
            while rows:
                piece = [each for place, each in enumerate(rows[:frame_size]) if each.offset == rows[0].offset + place]
                rows = rows[len(piece) :]
                begin, end = piece[0].offset, ends.get((topic, queue), 0)
                if begin > end:
                    log.append([Append(topic, queue, hole(begin, 1), end)])
                log.append([Append(topic, queue, payload_of(piece, compression), begin)])
                ends[topic, queue] = begin + len(piece)


def payload_of(rows: Sequence[Stored], compression: Compression = Compression.NONE) -> Payload:
    """Return the payload of a frame with these messages."""
    return encode(_columns(rows), compression)


def _columns(rows: Sequence[Stored]) -> FrameColumns:
    return FrameColumns(
        body=[row.body for row in rows],
        stored_at_us=[row.stored_at_us for row in rows],
        transaction_id=b"".join(row.id_bytes for row in rows),
        n=[row.n for row in rows],
        born_at_us=[row.born_at_us for row in rows],
        key=[row.key or "" for row in rows],
        tag=[row.tag or "" for row in rows],
        ordering_key=[row.ordering_key or "" for row in rows],
        headers=[row.headers or b"" for row in rows],
    )
