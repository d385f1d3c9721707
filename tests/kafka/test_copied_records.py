"""Records that a stream copied elsewhere with all their headers: each is read once, at the partition's offset."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from confluent_kafka import TopicPartition

from tests.integration.cli_harness import json_of
from tests.kafka.copies import copy_records
from tests.kafka_server import Kafka, create_topic
from tests.metaq.consumers import Seen
from tests.waiting import until
from txmsg.binlog.mirror.kafka_sink import KafkaSink
from txmsg.binlog.rows import RowBatch, TableRow
from txmsg.client.app import Txmsg
from txmsg.message import EPOCH_2000_US, Message, QueueNumber, now_us
from txmsg.metaq import LogProducer, LogQueue, open_log, read_arrow
from txmsg.metaq.interface import QueueRange

pytestmark = pytest.mark.long

COUNTS = (200, 30)
"""Messages in queues 0 and 1. Those of queue 1 are copied last, and have lower offsets."""
WRITTEN = [b"%d/%d" % (queue, offset) for queue, count in enumerate(COUNTS) for offset in range(count)]


def mirror(where: str) -> None:
    """Append in two transactions, so that offsets of queues and partitions differ."""
    at_us = now_us() - EPOCH_2000_US
    with closing(KafkaSink(where)) as sink:
        for half in (0, 1):
            sink.append([_half(queue, count, half, at_us) for queue, count in enumerate(COUNTS)])


def _half(queue: int, count: int, half: int, at_us: int) -> RowBatch:
    offsets = range(half * count // 2, (half + 1) * count // 2)
    rows = [
        TableRow((queue << 32 | at).to_bytes(16), 0, b"k", b"", b"", b"%d/%d" % (queue, at), at_us, at_us, b"")
        for at in offsets
    ]
    return RowBatch("orders", QueueNumber(queue), offsets.start, rows)


def produce(where: str) -> None:
    with open_log(where) as log:
        producer = LogProducer(log, queues=2)
        for queue, count in enumerate(COUNTS):
            producer.send_many([Message("orders", b"%d/%d" % (queue, at), key="k") for at in range(count)], queue=queue)


@pytest.mark.parametrize("write", [mirror, produce])
@pytest.mark.parametrize("target", [LogQueue("copied", 0), LogQueue("orders", 2)], ids=["topic", "partition"])
@pytest.mark.parametrize("is_more_sent", [False, True])
def test_records_copied_between_partitions_are_read_once_in_order(
    *, kafka: Kafka, kafka_prefix: str, tmp_path: Path, write: object, target: LogQueue, is_more_sent: bool
) -> None:
    where = f"{kafka.address}/{kafka_prefix}"
    create_topic(kafka, f"{kafka_prefix}orders", 3)
    create_topic(kafka, f"{kafka_prefix}copied", 1)
    assert callable(write)
    write(where)
    into = TopicPartition(f"{kafka_prefix}{target.topic}", target.queue)
    for number, count in enumerate(COUNTS):
        assert copy_records(kafka, TopicPartition(f"{kafka_prefix}orders", number), into) == count
    bodies = list(WRITTEN)
    if is_more_sent:
        with open_log(where) as log:
            sent = LogProducer(log, queues=target.queue + 1).send(Message(target.topic, b"sent"), queue=target.queue)
        assert sent.offset == len(bodies)
        bodies.append(b"sent")

    with open_log(where) as log:
        assert log.ranges([target]) == {target: QueueRange(0, len(bodies))}
        assert log.offsets_at([target], 0) == {target: 0}
    found = read_arrow(where, target.topic, queues=[target.queue]).read_all()
    assert found["offset"].to_pylist() == list(range(len(bodies)))
    assert found["body"].to_pylist() == bodies

    to = str(tmp_path / "exported")
    done = json_of("metaq", "export", target.topic, "--log", where, "--into", to, "--queue", str(target.queue))
    assert done["messages"] == len(bodies)
    assert [body for file in done["files"] for body in pq.read_table(file)["body"].to_pylist()] == bodies

    seen = Seen()
    app = Txmsg(log=where, group="mail")
    app.subscribe(target.topic, source="log")(seen)
    others = 0 if target.topic == "copied" else len(WRITTEN)
    with app:
        until(lambda: len(seen.messages) >= len(bodies) + others)
    of_target = [message for message in seen.messages if message.queue == target.queue]
    assert [message.offset for message in of_target] == list(range(len(bodies)))
    assert [message.body for message in of_target] == bodies
    assert Counter(message.id for message in seen.messages).most_common(1)[0][1] == 1
