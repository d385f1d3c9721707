"""Logs with unreadable messages among readable ones: in frames, and as Kafka records without a Kafka."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import confluent_kafka
import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME

from txmsg.errors import UnreadableMessage
from txmsg.metaq import read_arrow
from txmsg.metaq.format import frame
from txmsg.metaq.format.frame import Compression, FrameColumns, encode
from txmsg.metaq.interface import FETCH_SIZE_BYTES_MAX, Fetched, LogAccess, LogQueue
from txmsg.metaq.kafka.batch import RecordBatch
from txmsg.metaq.kafka.record import Headers, records_of
from txmsg.metaq.local import LocalLog
from txmsg.metaq.store.log import Append
from txmsg.wire.headers import pack_headers

AT_MS: Final = 1_700_000_000_000
_TOGETHER: Final = 200
"""Records of Kafka in a batch."""


class Strange(NamedTuple):
    """A defect of a record, and its error text. Without a header it is another program's record."""

    timestamp_ms: int = AT_MS
    header: tuple[str, bytes] | None = None
    told: str = ""

    def headers(self, own: Headers) -> Headers:
        """Return the headers of a record with this defect, given its correct ones."""
        return [*((name, value) for name, value in own if name != self.header[0]), self.header] if self.header else []


UNREADABLE: Final = {
    "id": Strange(header=("txmsg-id", b"x"), told="header txmsg-id is b'x'"),
    "number": Strange(header=("txmsg-id", b"018bcfe5-6800-7000-8000-000000000000.70000"), told="header txmsg-id is"),
    "times": Strange(header=("txmsg-times", b"5"), told="header txmsg-times is b'5'"),
    "times in ns": Strange(header=("txmsg-times", b"1 1700000000000000000"), told="its time 1700000000000000000 us"),
    "tag": Strange(header=("txmsg-tag", b"\xff"), told="header txmsg-tag is b'"),
    "us": Strange(timestamp_ms=AT_MS * 1000, told="its time 1700000000000000 ms"),
    "ns": Strange(timestamp_ms=AT_MS * 1_000_000, told="its time 1700000000000000000 ms"),
}
"""Kinds of records that no reader can decode."""


class LogOfRecords(LocalLog):
    """A log in a directory whose topics are read as Kafka's records are, decoded by the same code."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, append=True)
        self._records: dict[LogQueue, list[confluent_kafka.Message]] = {}

    def fill(self, queue: LogQueue, count: int, unreadable: Mapping[int, str]) -> None:
        """Append so many messages, with bodies b"0", b"1", ...; unreadable: offsets and kinds of unreadable ones."""
        columns = FrameColumns(
            [b"%d" % at for at in range(count)],
            [AT_MS * 1000],
            _ids(range(count)),
        )
        self.append([Append(*queue, encode(columns))])  # where it ends, groups and members look up
        kept = self._records[queue] = []
        for at, record in enumerate(records_of(columns, *queue)):
            strange = UNREADABLE[unreadable[at]] if at in unreadable else None
            kept.append(
                confluent_kafka.Message(
                    topic=queue.topic,
                    partition=queue.queue,
                    offset=at,
                    key=record.key,
                    value=record.value,
                    headers=record.headers if strange is None else strange.headers(record.headers),
                    timestamp=(TIMESTAMP_CREATE_TIME, record.timestamp_ms if strange is None else strange.timestamp_ms),
                )
            )

    def fetch(
        self, wanted: Mapping[LogQueue, int], *, size_bytes_max: int = FETCH_SIZE_BYTES_MAX, wait_s: float = 0.0
    ) -> list[Fetched]:
        """Fetch as `LogAccess.fetch` does."""
        found = super().fetch(wanted, size_bytes_max=size_bytes_max, wait_s=wait_s)
        return [self._as_records(fetched, wanted[fetched.queue]) for fetched in found]

    def _as_records(self, fetched: Fetched, offset: int) -> Fetched:
        records: Sequence[confluent_kafka.Message] = self._records.get(fetched.queue, ())
        if not records:
            return fetched
        try:
            return Fetched(fetched.queue, (RecordBatch.of(*fetched.queue, records[offset : offset + _TOGETHER]),))
        except UnreadableMessage as exc:
            return Fetched(fetched.queue, error=exc)


def append_frames(
    log: LocalLog,
    queue: LogQueue,
    count: int,
    unreadable: Sequence[int],
    compression: Compression,
    *,
    by_times: bool = False,
) -> None:
    """Append the same in frames of 200 messages, with invalid headers in the unreadable ones.

    by_times: their times are none, as no release appends them.
    """
    for first in range(0, count, _TOGETHER):
        offsets = range(first, min(first + _TOGETHER, count))
        columns = FrameColumns(
            [b"%d" % at for at in offsets],
            [AT_MS * 1000],
            _ids(offsets),
            headers=[b"\xff" if at in unreadable and not by_times else pack_headers({"at": str(at)}) for at in offsets],
            born_at_us=[AT_MS * 1_000_000 if at in unreadable and by_times else AT_MS * 1000 for at in offsets],
        )
        log.append([Append(*queue, frame._encode(columns, compression, frame.FrameKind.MESSAGES))])


def bodies_before_the_stop(log: str | LogAccess, topic: str) -> tuple[list[bytes], UnreadableMessage]:
    """Return the messages of a topic read as a table, and the error that ends it."""
    bodies: list[bytes] = []
    try:
        for batch in read_arrow(log, topic):
            bodies.extend(batch["body"].to_pylist())
    except UnreadableMessage as exc:
        return bodies, exc
    pytest.fail("all of it was read")


def _ids(offsets: range) -> bytes:
    """Return ids without a time, so that a search for them begins at the first message."""
    return b"".join((at + 1).to_bytes(16) for at in offsets)
