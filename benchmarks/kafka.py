"""A log in Kafka: what reading and appending by txmsg costs beside Kafka's own client, and beside the embedded log.

Target: LogConsumer from Kafka at 0.7 of confluent-kafka alone, which reads the same records into the same Arrow columns
that it has (value, key, timestamp, offset and headers). Messages have 100 bytes and a key, in one queue; they are
appended in calls of 1,000. What is read must be what was appended, or the exit status is 1.

Kafka is one node on this machine, of the tests (Java and Maven), or the one that --kafka names.

    python -m benchmarks.kafka [--quick] [--json] [--kafka HOST:PORT]
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.surroundings import parser_of, progress_of
from benchmarks.turns import Compared, by_turns
from txmsg.message import Message
from txmsg.metaq import (
    Flush,
    LogAccess,
    LogConfig,
    LogConsumer,
    LogProducer,
    LogQueue,
    TopicSettings,
    open_log,
    to_arrow,
)

CALL_COUNT = 1000
EMBEDDED = "fetch into Arrow, beside the embedded log"
TOPIC = "bench"
_QUEUE = LogQueue(TOPIC, 0)
_BODY = b"x" * 100
_WAIT_S = 60.0


class Mismatch(Exception):
    """What was read is not what was appended."""


@contextmanager
def kafka(servers: str | None) -> Iterator[str]:
    """HOST:PORT of a Kafka."""
    if servers is not None:
        yield servers
        return
    from tests.kafka_server import PrivateKafka

    with tempfile.TemporaryDirectory(prefix="txmsg-bench-") as directory:
        with PrivateKafka(Path(directory) / "kafka") as running:
            yield running.servers


def rate_of(work: Callable[[], int], expected: int) -> float:
    """Messages per second of work that tells how many it had."""
    began_at = time.perf_counter()
    count = work()
    rate = count / (time.perf_counter() - began_at)
    if count != expected:
        raise Mismatch(f"{count} messages instead of {expected}")
    return rate


# ---- appending


def append(log: LogAccess, count: int) -> int:
    producer = LogProducer(log, queues=1)
    messages = [Message(TOPIC, _BODY, key=f"k{number}") for number in range(CALL_COUNT)]
    return sum(len(producer.send_many(messages)) for _ in range(count // CALL_COUNT))


def produce(servers: str, topic: str, count: int) -> int:
    """By Kafka's client alone, as safely."""
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 5})
    for number in range(count):
        while True:
            try:
                producer.produce(topic, _BODY, f"k{number % CALL_COUNT}", 0)
                break
            except BufferError:
                producer.poll(0.1)
    return count if producer.flush(_WAIT_S) == 0 else 0


# ---- reading


def consume_alone(servers: str, topic: str, count: int, *, columns: bool) -> int:
    """By Kafka's client alone: bare messages, or Arrow columns."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "unused",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
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
            found += table.num_rows
        else:
            found += len(records)
    consumer.close()
    return found


def fetch(log: LogAccess, count: int, *, as_messages: bool) -> int:
    found = offset = 0
    while found < count:
        for fetched in log.fetch({_QUEUE: offset}, wait_s=1.0):
            for batch in fetched.batches:
                offset = batch.end_offset
                found += sum(1 for _ in batch.messages()) if as_messages else to_arrow([batch]).num_rows
    return found


def consume(log: LogAccess, count: int) -> int:
    """By a LogConsumer, into Arrow."""
    found = 0
    consumer = LogConsumer(log, f"bench-{uuid.uuid4().hex}")
    consumer.subscribe(TOPIC)
    with consumer:
        while found < count:
            found += sum(len(batch.to_arrow()) for batch in consumer.poll(5.0))
    return found


def compare(servers: str, count: int, turns: int, step: Callable[[], None]) -> dict[str, Compared]:
    """All kinds of work, by turns."""
    compared: dict[str, Compared] = {}
    with tempfile.TemporaryDirectory(prefix="txmsg-bench-") as directory:
        config = LogConfig(topic=TopicSettings(flush=Flush.TIMED))
        for turn in range(turns):
            prefix = f"bench-{uuid.uuid4().hex}-"
            with (
                open_log(f"kafka://{servers}/{prefix}") as log,
                open_log(Path(directory) / str(turn), append=True, config=config) as embedded,
            ):
                log.append([])
                LogProducer(log, queues=1).send(Message("warm", _BODY))
                LogProducer(log, queues=1).send(Message("alone", _BODY))
                topic = f"{prefix}{TOPIC}"
                by_turns(
                    lambda log=log: {"append": rate_of(lambda: append(log, count), count)},  # type: ignore[misc]
                    lambda prefix=prefix: {  # type: ignore[misc]
                        "append": rate_of(lambda: produce(servers, f"{prefix}alone", count), count)
                    },
                    compared,
                )
                into = {
                    "fetch into Arrow": lambda log=log: fetch(log, count, as_messages=False),
                    "fetch into messages": lambda log=log: fetch(log, count, as_messages=True),
                    "LogConsumer into Arrow": lambda log=log: consume(log, count),
                }
                for name, work in into.items():
                    by_turns(
                        lambda name=name, work=work: {name: rate_of(work, count)},  # type: ignore[misc]
                        lambda name=name, topic=topic: {  # type: ignore[misc]
                            name: rate_of(lambda: consume_alone(servers, topic, count, columns=True), count)
                        },
                        compared,
                    )
                by_turns(
                    lambda log=log: {  # type: ignore[misc]
                        "fetch, nothing made of it": rate_of(lambda: count_of(log, count), count)
                    },
                    lambda topic=topic: {  # type: ignore[misc]
                        "fetch, nothing made of it": rate_of(
                            lambda: consume_alone(servers, topic, count, columns=False), count
                        )
                    },
                    compared,
                )
                append(embedded, count)
                by_turns(
                    lambda log=log: {EMBEDDED: rate_of(lambda: fetch(log, count, as_messages=False), count)},  # type: ignore[misc]
                    lambda log=embedded: {EMBEDDED: rate_of(lambda: fetch(log, count, as_messages=False), count)},  # type: ignore[misc]
                    compared,
                )
            step()
    return compared


def count_of(log: LogAccess, count: int) -> int:
    found = offset = 0
    while found < count:
        for fetched in log.fetch({_QUEUE: offset}, wait_s=1.0):
            for batch in fetched.batches:
                offset = batch.end_offset
                found += len(batch)
    return found


def main() -> int:
    """Measures, prints, and compares with what was appended."""
    parser = parser_of(__doc__, "few messages")
    parser.add_argument("--kafka", metavar="HOST:PORT", help="a Kafka that runs")
    options = parser.parse_args()
    turns, count = (2, 100_000) if options.quick else (5, 500_000)
    try:
        with kafka(options.kafka) as servers, progress_of("kafka", turns) as step:
            compared = compare(servers, count, turns, step)
    except Mismatch as exc:
        print(exc, file=sys.stderr)
        return 1
    for name, each in compared.items():
        print(f"{name:42}{each.rate:12,.0f}/s   beside {each.reference:12,.0f}/s   ratio {each.ratio:.2f}")
    if options.json:
        print(json.dumps({key: value for name, each in compared.items() for key, value in each.figures(name).items()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
