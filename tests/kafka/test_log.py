"""`LogAccess` on a real Kafka."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import NewPartitions

from tests.kafka_server import Kafka, admin, create_topic
from tests.waiting import until
from txmsg.errors import (
    MisuseError,
    OffsetOutOfRange,
    UnknownGroup,
)
from txmsg.message import Message, new_transaction_id_bytes, now_us
from txmsg.metaq import Acks, LogAccess, LogProducer, LogQueue, open_log, to_arrow
from txmsg.metaq.format.frame import Compression, FrameColumns, encode
from txmsg.metaq.interface import Fetched, GroupState, QueueRange
from txmsg.metaq.kafka.record import records_of
from txmsg.metaq.store.log import Append
from txmsg.metaq.store.topics import Flush, TopicSettings

pytestmark = pytest.mark.long

NOW_US = now_us() // 1_000_000 * 1_000_000
"""Kafka deletes records with old timestamps."""


@pytest.fixture
def log(kafka: Kafka, kafka_prefix: str) -> Iterator[LogAccess]:
    with open_log(f"{kafka.address}/{kafka_prefix}") as access:
        yield access


def mirror(kafka: Kafka, name: str, counts: list[int], *, begin: int = 0, partition: int = 0) -> None:
    """Append transactions of so many messages each, with consecutive queue offsets; negative ones are aborted."""
    producer = Producer({"bootstrap.servers": kafka.servers, "transactional.id": f"{name}-{partition}", "log_level": 0})
    producer.init_transactions(30)
    offset = begin
    for count in counts:
        producer.begin_transaction()
        columns = FrameColumns(
            [b"%d" % each for each in range(offset, offset + abs(count))], [NOW_US + 1_000_000 * offset]
        )
        columns.transaction_id = b"".join(new_transaction_id_bytes() for _ in columns.body)
        for record in records_of(columns, name, partition, offset):
            producer.produce(
                name, record.value, record.key, partition, timestamp=record.timestamp_ms, headers=record.headers
            )
        if count < 0:
            producer.flush(30)  # else there would be no records to skip
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
            offset += count


def read(log: LogAccess, queue: LogQueue, offset: int = 0, end: int | None = None) -> list[tuple[int, bytes]]:
    """Return offsets and bodies up to the end."""
    end = log.ranges([queue])[queue].end if end is None else end
    found: list[tuple[int, bytes]] = []
    while offset < end:
        [fetched] = log.fetch({queue: offset}, size_bytes_max=5000)
        if fetched.error is not None:
            raise fetched.error
        for batch in fetched.batches:
            messages = list(batch.messages())
            assert (batch.base_offset, batch.end_offset) == (messages[0].offset, (messages[-1].offset or 0) + 1)
            found += ((message.offset or 0, message.body) for message in messages)
            offset = batch.end_offset
    return found


def test_messages_sent_by_a_producer_are_read(log: LogAccess) -> None:
    producer = LogProducer(log, queues=2)
    message = Message("orders", b"body", key="k", tag="paid", headers={"h": "v", "txmsg-id": "x"}, ordering_key="o")
    place = producer.send(message)
    plain = producer.send_many([Message("orders", b"%d" % number) for number in range(3)], queue=1 - place.queue)
    assert [each.offset for each in plain] == [0, 1, 2]
    assert log.topics() == {"orders": [0, 1]}
    assert log.queues_of("orders") == [0, 1]
    queue, other = LogQueue("orders", place.queue), LogQueue("orders", 1 - place.queue)
    assert log.ranges([queue, other, LogQueue("none", 7)]) == {
        queue: QueueRange(0, 1), other: QueueRange(0, 3), LogQueue("none", 7): QueueRange(0, 0)
    }  # fmt: skip
    fetched: dict[LogQueue, Fetched] = {}
    while len(fetched) < 2:  # a fetch returns the messages arrived by then
        fetched |= {each.queue: each for each in log.fetch({queue: 0, other: 0}, wait_s=60)}
    [found] = fetched[queue].batches[0].messages()
    assert (found.body, found.key, found.tag, found.ordering_key, dict(found.headers)) == (
        b"body", "k", "paid", "o", {"h": "v", "txmsg-id": "x"},
    )  # fmt: skip
    assert NOW_US <= found.stored_at_us <= now_us()
    assert found.born_at_us == found.stored_at_us
    table = to_arrow(fetched[queue].batches)
    assert table.to_pylist()[0]["transaction_id"] == found.id_bytes
    assert table["body"].to_pylist() == [b"body"]
    assert log.find("orders", "k") == [found]
    assert log.find("orders", "none") == []
    assert log.find_id("orders", found.id) == found


def test_fetch_returns_messages_just_appended(log: LogAccess) -> None:
    queue = LogQueue("t", 0)
    producer = LogProducer(log, queues=1)
    for offset in range(20):
        producer.send(Message("t", b"%d" % offset))
        [fetched] = log.fetch({queue: offset})
        assert [message.body for message in fetched.batches[0].messages()] == [b"%d" % offset]
    assert log.fetch({queue: 20}) == []


def test_fetch_waits_until_one_of_its_queues_has_messages(log: LogAccess) -> None:
    LogProducer(log, queues=2).send_many([Message("t", b"0")], queue=1)
    wanted = {LogQueue("t", 0): 0, LogQueue("t", 1): 1}
    assert log.fetch(wanted, wait_s=0.2) == []
    sender = threading.Thread(target=lambda: LogProducer(log, queues=2).send(Message("t", b"1"), queue=0))
    sender.start()
    [fetched] = log.fetch(wanted, wait_s=60)
    sender.join()
    assert fetched.queue == LogQueue("t", 0)


def test_close_ends_a_wait_of_another_thread(kafka: Kafka, kafka_prefix: str) -> None:
    access = open_log(f"{kafka.address}/{kafka_prefix}")
    LogProducer(access, queues=1).send(Message("t", b"0"))
    waiting = threading.Thread(target=lambda: access.fetch({LogQueue("t", 0): 1}, wait_s=600))
    waiting.start()
    access.close()
    access.close()
    waiting.join(60)
    assert not waiting.is_alive()
    with pytest.raises(MisuseError, match="was closed"):
        access.topics()


def test_mirror_keeps_the_offsets_of_its_queues(kafka: Kafka, kafka_prefix: str, log: LogAccess) -> None:
    """Transaction markers and aborted records are between the messages."""
    create_topic(kafka, f"{kafka_prefix}mirrored", 2)
    queue, empty = LogQueue("mirrored", 0), LogQueue("mirrored", 1)
    mirror(kafka, f"{kafka_prefix}mirrored", [3, -50, 1, 1, 1, -1, -1, 40, 1, -7, 5], begin=100)
    assert log.ranges([queue, empty]) == {queue: QueueRange(100, 152), empty: QueueRange(0, 0)}
    expected = [(offset, b"%d" % offset) for offset in range(100, 152)]
    assert read(log, queue, 100) == expected
    for offset in (151, 103, 145, 100, 106, 107, 144):
        with open_log(f"{kafka.address}/{kafka_prefix}") as other:  # which has not read anything yet
            assert read(other, queue, offset, 152) == expected[offset - 100 :]
    assert log.fetch({queue: 152}) == []
    for offset in (99, 153):
        [fetched] = log.fetch({queue: offset})
        assert isinstance(fetched.error, OffsetOutOfRange)
        assert (fetched.error.begin, fetched.error.end) == (100, 152)
    assert log.offsets_at([queue, empty], 0) == {queue: 100, empty: 0}
    assert log.offsets_at([queue], NOW_US + 103_500_000) == {queue: 104}
    assert log.offsets_at([queue], 2 * NOW_US) == {queue: 152}


def test_uncommitted_records_are_not_read(kafka: Kafka, kafka_prefix: str, log: LogAccess) -> None:
    create_topic(kafka, f"{kafka_prefix}open")
    producer = Producer({"bootstrap.servers": kafka.servers, "transactional.id": kafka_prefix, "log_level": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(f"{kafka_prefix}open", b"x", partition=0)
    producer.flush(30)
    queue = LogQueue("open", 0)
    assert log.ranges([queue]) == {queue: QueueRange(0, 0)}
    assert log.fetch({queue: 0}, wait_s=0.2) == []
    producer.commit_transaction(30)
    until(lambda: log.ranges([queue])[queue].end)  # Kafka confirms the commit before partitions have it
    assert read(log, queue) == [(0, b"x")]


def test_fetch_of_deleted_offset_reports_the_remaining_range(kafka: Kafka, kafka_prefix: str, log: LogAccess) -> None:
    queue = LogQueue("short", 0)
    LogProducer(log, queues=1).send_many([Message("short", b"%d" % number) for number in range(10)])
    assert len(read(log, queue)) == 10
    client = admin(kafka)
    place = TopicPartition(f"{kafka_prefix}short", 0, 4)
    client.delete_records([place])[place].result(30)
    [fetched] = log.fetch({queue: 2})
    assert isinstance(fetched.error, OffsetOutOfRange)
    assert (fetched.error.begin, fetched.error.end) == (4, 10)
    assert read(log, queue, 4)[0] == (4, b"4")


def test_threads_can_read_queues_concurrently(log: LogAccess) -> None:
    producer = LogProducer(log, queues=2)
    for number in (0, 1):
        producer.send_many([Message("t", b"%d" % each) for each in range(2000)], queue=number)
    found: dict[int, list[list[tuple[int, bytes]]]] = {0: [], 1: []}
    threads = [
        threading.Thread(target=lambda number=number: found[number].append(read(log, LogQueue("t", number))))
        for number in (0, 1, 0, 1)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    expected = [(each, b"%d" % each) for each in range(2000)]
    assert found == {0: [expected, expected], 1: [expected, expected]}


def test_queue_left_out_of_a_fetch_keeps_its_position(log: LogAccess) -> None:
    """Its messages are returned by a later fetch; many of them pause its partition."""
    first, second = LogQueue("t", 0), LogQueue("t", 1)
    producer = LogProducer(log, queues=2)
    for number in (0, 1):
        for _ in range(4):
            producer.send_many([Message("t", bytes(100_000)) for _ in range(30)], queue=number)
    offsets = {first: 0, second: 0}
    counts = dict.fromkeys(offsets, 0)
    for wanted in ([first, second], *([first],) * 50, *([first, second],) * 100):
        for fetched in log.fetch({queue: offsets[queue] for queue in wanted}):
            assert fetched.error is None
            for batch in fetched.batches:
                assert batch.base_offset == offsets[fetched.queue]
                offsets[fetched.queue] = batch.end_offset
                counts[fetched.queue] += len(batch)
    assert counts == {first: 120, second: 120}


def test_internal_topics_of_groups_are_not_listed(kafka: Kafka, kafka_prefix: str, log: LogAccess) -> None:
    payload = encode(FrameColumns([b"x"], [NOW_US], bytes(16)), Compression.ZSTD)
    assert log.append([Append("%RETRY%mail", 2, payload), Append("%DLQ%mail", 0, payload)]) == [0, 0]
    assert log.topics() == {}
    assert log.queues_of("%RETRY%mail") == list(range(18)), "a queue for each delay of the back-off"
    assert log.queues_of("none") == []
    assert read(log, LogQueue("%RETRY%mail", 2)) == [(0, b"x")]
    assert f"{kafka_prefix}mail.txmsg-retry" in admin(kafka).list_topics(timeout=30).topics


def test_added_queue_is_found(kafka: Kafka, kafka_prefix: str, log: LogAccess) -> None:
    producer = LogProducer(log, queues=1)
    producer.send(Message("t", b"0"))
    client = admin(kafka)
    client.create_partitions([NewPartitions(f"{kafka_prefix}t", 3)])[f"{kafka_prefix}t"].result(30)
    assert producer.send(Message("t", b"1"), queue=2).offset == 0
    assert read(log, LogQueue("t", 2)) == [(0, b"1")]
    assert producer.send(Message("t", b"2"), queue=5).offset == 0
    assert log.queues_of("t") == list(range(6))


def test_topic_settings_are_read_from_and_written_to_kafka(log: LogAccess) -> None:
    assert log.settings_of("t") == TopicSettings(flush=Flush.TIMED)
    LogProducer(log, queues=1).send(Message("t", b"0"))
    settings = TopicSettings(flush=Flush.TIMED, compression=Compression.ZSTD, retention_s=3600.5)
    log.set_topic("t", settings)
    until(lambda: log.settings_of("t") == settings)  # a broker hears of it after the controller has answered
    log.set_topic("t", TopicSettings(flush=Flush.TIMED))
    until(lambda: log.settings_of("t") == TopicSettings(flush=Flush.TIMED))
    with pytest.raises(MisuseError, match=r"min\.insync\.replicas"):
        log.set_topic("t", TopicSettings(flush=Flush.SYNC))
    with pytest.raises(MisuseError, match=r"kafka-acls\.sh"):
        log.set_topic("t", TopicSettings(flush=Flush.TIMED, write_queues=1))


def test_append_with_explicit_offset_or_delay_is_refused(log: LogAccess) -> None:
    payload = encode(FrameColumns([b"x"], [NOW_US]))
    with pytest.raises(MisuseError, match="has an offset"):
        log.append([Append("t", 0, payload, 5)])
    with pytest.raises(MisuseError, match="is delayed, which Kafka does not support"):
        log.append([Append("t", 0, payload, due_at_us=NOW_US + 1)])
    assert log.topics() == {}


def test_identity_is_derived_from_cluster_and_prefix(kafka: Kafka, log: LogAccess) -> None:
    with open_log(kafka.address) as plain, open_log(f"{kafka.address}/x") as other:
        assert plain.identity() == plain.identity()
        assert len({plain.identity(), other.identity(), log.identity()}) == 3


def test_groups_of_kafka_can_be_listed_moved_and_deleted(kafka: Kafka, kafka_prefix: str, log: LogAccess) -> None:
    group = "mail"
    create_topic(kafka, f"{kafka_prefix}mirrored")
    mirror(kafka, f"{kafka_prefix}mirrored", [2, -3, 2, 2], begin=10)
    queue = LogQueue("mirrored", 0)
    with pytest.raises(UnknownGroup, match=group):
        log.group(group)
    consumer = Consumer({"bootstrap.servers": kafka.servers, "group.id": kafka_prefix + group, "log_level": 0})
    consumer.commit(offsets=[TopicPartition(f"{kafka_prefix}mirrored", 0, 7)], asynchronous=False)
    consumer.close()
    assert group in log.groups()
    [state] = log.group(group).queues
    assert (state.queue, state.owner, state.offset, state.kept) == (queue, None, 12, QueueRange(10, 16))
    log.seek(group, {queue: 14})
    assert log.group(group).queues[0].offset == 14
    log.append([Append(f"%DLQ%{group}", 0, encode(FrameColumns([b"x"], [NOW_US], bytes(16))))])
    log.delete_group(group)
    assert group not in log.groups()
    assert log.queues_of(f"%DLQ%{group}") == []
    with pytest.raises(UnknownGroup, match=group):
        log.delete_group(group)


def test_group_whose_topics_were_deleted_can_be_shown_and_deleted(
    kafka: Kafka, kafka_prefix: str, log: LogAccess
) -> None:
    name = f"{kafka_prefix}gone"
    create_topic(kafka, name)
    consumer = Consumer({"bootstrap.servers": kafka.servers, "group.id": f"{kafka_prefix}mail", "log_level": 0})
    consumer.commit(offsets=[TopicPartition(name, 0, 7)], asynchronous=False)
    consumer.close()
    client = admin(kafka)  # kept until the answer has arrived
    client.delete_topics([name])[name].result(30)
    until(lambda: log.queues_of("gone") == [])
    assert log.group("mail") == GroupState("mail", (), ())
    log.delete_group("mail")
    assert log.groups() == []
    with pytest.raises(UnknownGroup):
        log.group("mail")


def test_acks_that_kafka_cannot_guarantee_are_refused(kafka: Kafka, kafka_prefix: str, log: LogAccess) -> None:
    for acks in (Acks.NONE, Acks.MEMORY):
        assert LogProducer(log, queues=1, acks=acks).send(Message(f"t-{acks}", b"x")).offset == 0
    with pytest.raises(MisuseError, match=r"acks=disk .* before it syncs to disk"):
        LogProducer(log, acks=Acks.DISK).send(Message("t", b"x"))
    create_topic(kafka, f"{kafka_prefix}t", min_insync_replicas="1")
    with pytest.raises(MisuseError, match=r"1 copy is enough: set its min.insync.replicas to 2"):
        LogProducer(log, queues=1, acks=Acks.COPIES).send(Message("t", b"x"))
    assert log.ranges([LogQueue("t", 0)])[LogQueue("t", 0)] == QueueRange(0, 0)
