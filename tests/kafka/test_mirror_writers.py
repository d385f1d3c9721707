"""Only one of several writers mirrors into Kafka: another's open transaction is not read, and cannot be committed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any

import pytest

from tests.kafka_server import Kafka
from tests.mirror.plant import PLANTS
from txmsg.binlog.mirror.kafka_sink import KafkaSink
from txmsg.binlog.rows import RowBatch, TableRow
from txmsg.binlog.sink import MessageFingerprint, QueueTail
from txmsg.binlog.verifier.kafka_walk import KafkaTopics, offset_of
from txmsg.binlog.verifier.mirror import VerifiedQueue
from txmsg.errors import LogBusy
from txmsg.message import QueueNumber

pytestmark = pytest.mark.long

ANSWER_S_MAX = 30.0
BEGUN, END = 3, 9
"""Offsets: the mirrored ones when a tailer is paused, and the end of the table."""
MOMENTS = ("flush", "send_offsets_to_transaction", "commit_transaction")
"""Calls before which a tailer can be paused within its transaction."""


@pytest.fixture
def where(kafka: Kafka, kafka_prefix: str) -> str:
    return f"{kafka.address}/{kafka_prefix}"


def batch_of(offsets: range, queue: int = 0) -> RowBatch:
    rows = [TableRow(offset.to_bytes(16), 0, b"", b"", b"", b"%d" % offset, 0, 0, b"") for offset in offsets]
    return RowBatch("trade", QueueNumber(queue), offsets.start, rows)


def read(where: str) -> list[int | None]:
    """Return the offsets read by committed-only readers."""
    with KafkaTopics(where, None) as topics:
        return [offset_of(record) for record in topics.messages(VerifiedQueue("trade", 0))[1]]


class Paused:
    """A producer that is paused once, before one of its calls."""

    def __init__(self, producer: object, moment: str, pause: Callable[[], None]) -> None:
        self._producer = producer
        self._moment = moment
        self._pause = pause

    def __getattr__(self, name: str) -> Any:
        if name == self._moment:
            self._moment = ""
            self._pause()
        return getattr(self._producer, name)


def outlived(where: str, moment: str) -> tuple[str, list[int | None]]:
    """Pause a tailer in a transaction; another one reads where queues end; the first wakes; the other continues.

    Returns what the first one was told when it woke, and what readers get.
    """
    with ExitStack() as stack:
        first = stack.enter_context(closing(KafkaSink(where)))
        first.append([batch_of(range(BEGUN))])
        told = ""
        found: list[tuple[KafkaSink, QueueTail | Exception]] = []

        def pause() -> None:
            other = stack.enter_context(closing(KafkaSink(where)))
            [tail] = other.tails([("trade", 0)])
            found.append((other, tail))

        first._writer._producer = Paused(first._writer._producer, moment, pause)  # type: ignore[assignment]
        try:
            first.append([batch_of(range(BEGUN, END))])
        except LogBusy as exc:
            told = str(exc)
        [(other, tail)] = found
        if isinstance(tail, QueueTail) and tail.range is not None and tail.range.end < END:
            other.append([batch_of(range(tail.range.end, END))])
    return told, read(where)


@pytest.mark.parametrize("moment", MOMENTS)
def test_open_transaction_of_a_paused_writer_is_aborted_and_cannot_be_committed(where: str, moment: str) -> None:
    told, offsets = outlived(where, moment)
    assert "fenced" in told
    assert offsets == list(range(END))


@pytest.mark.parametrize("plant", PLANTS)
def test_each_planted_defect_of_the_writer_is_visible_to_readers(where: str, plant: str) -> None:
    written_twice, never_written = [*range(END), *range(BEGUN, END)], [*range(BEGUN)]
    # While notes are in an open transaction, Kafka does not return earlier ones.
    moment = "commit_transaction" if plant == "notes" else "send_offsets_to_transaction"
    with PLANTS[plant]():
        _, offsets = outlived(where, moment)
    assert offsets == (written_twice if plant in {"unfenced", "nameless"} else never_written)


def test_uncommitted_transaction_leaves_the_queue_unchanged(where: str) -> None:
    with closing(KafkaSink(where)) as sink:
        sink.append([batch_of(range(4)), batch_of(range(7), queue=1)])
    with closing(KafkaSink(where)) as sink:
        producer = sink._writer._producer
        producer.begin_transaction()
        sink._writer._produce(sink._part(batch_of(range(4, 300))))
        assert producer.flush(ANSWER_S_MAX) == 0
        sink._writer._notes.close()  # as killed: nothing is aborted
    with closing(KafkaSink(where)) as sink:
        tails = sink.tails([("trade", 0), ("trade", 1), ("trade", 2), ("paid", 0)])
        assert [getattr(tail, "range", tail) for tail in tails] == [(0, 4), (0, 7), (0, 0), (0, 0)]
        assert isinstance(mark := getattr(tails[0], "last", None), MessageFingerprint)
        assert (mark.offset, mark.transaction_id) == (3, (3).to_bytes(16))
        sink.append([batch_of(range(4, 5))])
    assert read(where) == list(range(5))
