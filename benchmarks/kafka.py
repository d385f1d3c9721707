"""A log in Kafka: reading and appending by txmsg beside Kafka's own client, and beside the embedded log.

Target: PullConsumer from Kafka at 0.7 of confluent-kafka alone, which reads the same records into the same columns of
Arrow that it has (value, key, timestamp, offset and headers). Messages have 100 bytes and a key, in one queue; they are
appended in calls of 1,000. Reading is timed from the first messages on, so that joining a group is no part of it. What
is read must be what was appended, or the exit status is 1.

Kafka is one node on this machine, of the tests (Java and Maven), or the one that --kafka names.

    python -m benchmarks.kafka [--quick] [--json] [--kafka HOST:PORT] [--only NAME ...]
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeAlias

import pyarrow as pa
from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.surroundings import parser_of, progress_of
from benchmarks.turns import Compared, by_turns
from txmsg.message import Message
from txmsg.metaq import (
    Flush,
    LogAccess,
    LogConfig,
    LogProducer,
    LogQueue,
    PullConsumer,
    TopicSettings,
    open_log,
    to_arrow,
)
from txmsg.metaq.format.batch import LogBatch
from txmsg.metaq.format.frame import FrameColumns, encode
from txmsg.metaq.store.log import Append

CALL_COUNT = 1000
READ = "read"
"""The topic for reading."""
ALONE, EMBEDDED = "confluent-kafka alone", "the embedded log"
_BODY = b"x" * 100
_KEYS = [f"k{number}" for number in range(CALL_COUNT)]
_WAIT_S = 60.0

Work: TypeAlias = Iterator[int]
"""Steps of work, each of so many messages. Setup and the first step are not timed."""
Take: TypeAlias = Callable[[Sequence[LogBatch]], int]
"""Processes the batches of a fetch; returns the number of messages."""


class Mismatch(Exception):
    """The messages read differ from those appended."""


class Row(NamedTuple):
    """A kind of work on a log, its reference in the same turn, and the name of the reference."""

    name: str
    work: Callable[[], Work]
    reference: Callable[[], Work]
    beside: str


class Logs(NamedTuple):
    """The logs of a turn: one in Kafka, with its topic prefix, and an embedded one."""

    servers: str
    prefix: str
    kafka: LogAccess
    embedded: LogAccess


@contextmanager
def kafka(servers: str | None) -> Iterator[str]:
    """Yield the HOST:PORT of a Kafka."""
    if servers is not None:
        yield servers
        return
    from tests.kafka_server import PrivateKafka

    with tempfile.TemporaryDirectory(prefix="txmsg-bench-") as directory:
        with PrivateKafka(Path(directory) / "kafka") as running:
            yield running.servers


@contextmanager
def fresh_logs(servers: str, directory: Path) -> Iterator[Logs]:
    """Yield empty logs. Neither waits for a disk."""
    prefix = f"bench-{uuid.uuid4().hex}-"
    config = LogConfig(topic=TopicSettings(flush=Flush.TIMED))
    with (
        open_log(f"kafka://{servers}/{prefix}") as in_kafka,
        open_log(directory, append=True, config=config) as embedded,
    ):
        yield Logs(servers, prefix, in_kafka, embedded)


def rate_of(work: Callable[[], Work], expected: int) -> float:
    """Return messages per second."""
    steps = work()
    count = first = next(steps)
    began_at = time.perf_counter()
    for step in steps:
        count += step
    rate = (count - first) / (time.perf_counter() - began_at)
    if count != expected:
        raise Mismatch(f"{count} messages instead of {expected}")
    return rate


# ---- appending


def append(log: LogAccess, count: int) -> Work:
    """Append encoded batches."""
    columns = FrameColumns([_BODY] * CALL_COUNT, [time.time_ns() // 1000], bytes(16 * CALL_COUNT), key=_KEYS)
    batch = Append("appended", 0, encode(columns))
    for _ in range(count // CALL_COUNT):
        log.append([batch])
        yield CALL_COUNT


def send(log: LogAccess, count: int, *, topic: str = "sent") -> Work:
    """Send by a LogProducer."""
    producer = LogProducer(log, queues=1)
    messages = [Message(topic, _BODY, key=key) for key in _KEYS]
    for _ in range(count // CALL_COUNT):
        yield len(producer.send_many(messages))


def produce(logs: Logs, count: int) -> Work:
    """Produce by Kafka's client alone, with the same safety, but without ids."""
    producer = Producer({"bootstrap.servers": logs.servers, "enable.idempotence": True, "linger.ms": 5})
    topic = f"{logs.prefix}sent"
    for _ in range(count // CALL_COUNT):
        for key in _KEYS:
            while True:
                try:
                    producer.produce(topic, _BODY, key, 0)
                    break
                except BufferError:
                    producer.poll(0.1)
        yield CALL_COUNT
    if left := producer.flush(_WAIT_S):
        raise Mismatch(f"{left} messages were not sent")


# ---- reading


def counted(batches: Sequence[LogBatch]) -> int:
    return sum(map(len, batches))


def into_messages(batches: Sequence[LogBatch]) -> int:
    return sum(1 for batch in batches for _ in batch.messages())


def into_arrow(batches: Sequence[LogBatch]) -> int:
    return int(to_arrow(batches).num_rows)


def fetch(log: LogAccess, count: int, take: Take) -> Work:
    queue = LogQueue(READ, 0)
    found = offset = 0
    while found < count:
        for fetched in log.fetch({queue: offset}, wait_s=1.0):
            offset = fetched.batches[-1].end_offset
            found += (taken := take(fetched.batches))
            yield taken


def consume(log: LogAccess, count: int) -> Work:
    """Consume by a PullConsumer, into Arrow."""
    found = 0
    consumer = PullConsumer(log, f"bench-{uuid.uuid4().hex}")
    consumer.subscribe(READ)
    with consumer:
        while found < count:
            taken = sum(len(batch.to_arrow()) for batch in consumer.poll(_WAIT_S))
            found += taken
            yield taken


def consume_alone(logs: Logs, count: int, *, columns: bool) -> Work:
    """Consume by Kafka's client alone: bare messages, or Arrow columns."""
    consumer = Consumer(
        {
            "bootstrap.servers": logs.servers,
            "group.id": "unused",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "fetch.queue.backoff.ms": 10,  # as ours: with its default of a second it pauses in between
        }
    )
    consumer.assign([TopicPartition(f"{logs.prefix}{READ}", 0, 0)])
    found = 0
    while found < count:
        records = consumer.consume(10_000, 1.0)
        if columns:
            headers = [record.headers() for record in records]
            table = pa.table(
                {
                    "offset": pa.array([record.offset() for record in records], pa.int64()),
                    "id": pa.array([dict(each or ())["txmsg-id"] for each in headers], pa.binary()),
                    "key": pa.array([record.key() for record in records], pa.binary()).cast(pa.string()),
                    "body": pa.array([record.value() for record in records], pa.binary()),
                    "stored_at": pa.array([record.timestamp()[1] for record in records], pa.int64()),
                }
            )
            assert table.num_rows == len(records)
        found += len(records)
        if records:
            yield len(records)
    consumer.close()


# ---- comparing


def rows(logs: Logs, count: int) -> Iterator[Row]:
    """Return the kinds of work, on logs whose topic READ has so many messages."""
    in_kafka, embedded = logs.kafka, logs.embedded
    bare, columns = (partial(consume_alone, logs, count, columns=columns) for columns in (False, True))
    yield Row("append", partial(append, in_kafka, count), partial(append, embedded, count), EMBEDDED)
    yield Row("LogProducer", partial(send, in_kafka, count), partial(produce, logs, count), ALONE)
    yield Row("LogProducer", partial(send, in_kafka, count), partial(send, embedded, count), EMBEDDED)
    takes: list[tuple[str, Take, Callable[[], Work]]] = [
        ("fetch", counted, bare),
        ("fetch into messages", into_messages, columns),
        ("fetch into Arrow", into_arrow, columns),
    ]
    for name, take, alone in takes:
        work = partial(fetch, in_kafka, count, take)
        yield Row(name, work, alone, ALONE)
        yield Row(name, work, partial(fetch, embedded, count, take), EMBEDDED)
    consuming = partial(consume, in_kafka, count)
    yield Row("PullConsumer into Arrow", consuming, columns, ALONE)
    yield Row("PullConsumer into Arrow", consuming, partial(consume, embedded, count), EMBEDDED)


def measure(row: Row, count: int, compared: dict[str, Compared]) -> None:
    """Measure both once."""
    name = f"{row.name}, beside {row.beside}"
    by_turns(lambda: {name: rate_of(row.work, count)}, lambda: {name: rate_of(row.reference, count)}, compared)


def compare(
    servers: str, count: int, turns: int, only: tuple[str, ...], step: Callable[[], None]
) -> dict[str, Compared]:
    """Run all kinds of work by turns, or those whose names begin so."""
    compared: dict[str, Compared] = {}
    with tempfile.TemporaryDirectory(prefix="txmsg-bench-") as directory:
        for turn in range(turns):
            with fresh_logs(servers, Path(directory) / str(turn)) as logs:
                LogProducer(logs.kafka, queues=1).send(Message("sent", _BODY))  # Kafka's client alone makes no topic
                for log in (logs.kafka, logs.embedded):
                    for _ in send(log, count, topic=READ):
                        pass
                for row in rows(logs, count):
                    if row.name.startswith(only):
                        measure(row, count, compared)
            step()
    return compared


def main() -> int:
    """Measure, print, and compare with the appended messages."""
    parser = parser_of(__doc__, "few messages")
    parser.add_argument("--kafka", metavar="HOST:PORT", help="a Kafka that runs")
    parser.add_argument("--only", nargs="+", default=[""], metavar="NAME", help="work whose names begin so")
    options = parser.parse_args()
    turns, count = (2, 100_000) if options.quick else (5, 500_000)
    try:
        with kafka(options.kafka) as servers, progress_of("kafka", turns) as step:
            compared = compare(servers, count, turns, tuple(options.only), step)
    except Mismatch as exc:
        print(exc, file=sys.stderr)
        return 1
    for name, each in compared.items():
        print(f"{name:50}{each.rate:12,.0f}/s   of {each.reference:12,.0f}/s   ratio {each.ratio:.2f}")
    if options.json:
        print(json.dumps({key: value for name, each in compared.items() for key, value in each.figures(name).items()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
