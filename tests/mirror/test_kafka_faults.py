"""A mirror in a Kafka: committed-only readers get each message of a queue once, in order, without a gap."""

from __future__ import annotations

import random
from contextlib import closing

import psycopg
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import ConfigResource, ResourceType

from tests.integration.cli_harness import json_of
from tests.kafka.copies import copy_records
from tests.kafka_server import Kafka, PrivateKafka, admin, create_topic
from tests.mirror.checks import WAIT_S_MAX, require_equal
from tests.mirror.conftest import QUEUES, NewTailer
from tests.mirror.load import Load
from tests.mirror.rows import make_queues, store, written
from tests.mirror.tailer_process import TailerProcess
from tests.mirror.test_each_log import EachLog
from tests.waiting import until
from txmsg.binlog.mirror.kafka_sink import KafkaSink
from txmsg.binlog.verifier.compare import verify
from txmsg.message import QueueNumber
from txmsg.metaq.kafka.names import MIRROR
from txmsg.metaq.kafka.probe import KafkaPartition
from txmsg.metaq.kafka.transactions import PartitionWrite

pytestmark = pytest.mark.long

ANSWER_S_MAX = 30.0


@pytest.fixture
def where(kafka: Kafka, kafka_prefix: str) -> str:
    return f"{kafka.address}/{kafka_prefix}"


def end_sessions(url: str) -> None:
    """End the sessions of tailers, as the server does after one was suspended for a minute."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity "
            "where application_name like 'txmsg tailer%' and datname = current_database()"
        )


def stops_of(url: str) -> dict[tuple[str, int], str]:
    """Return the reasons why queues are no longer mirrored."""
    with psycopg.connect(url) as connection:
        return {
            (topic, number): reason
            for topic, number, reason in connection.execute(
                "select t.name, q.number, m.stopped from txmsg.mirror_queue m join txmsg.queue q on q.id = m.queue "
                "join txmsg.topic t on t.id = q.topic_id where m.stopped is not null"
            )
        }


# ---- faults of the tailer


class TestKafka(EachLog):
    pass


def test_tailer_replaced_while_paused_writes_nothing_and_becomes_standby(
    url: str, where: str, load: Load, tailer: TailerProcess, new_tailer: NewTailer
) -> None:
    other = new_tailer(name="other")
    with load.going_on():
        for _ in range(3):
            tailer.start()
            seen = load.count
            until(lambda: load.count > seen + 100)  # noqa: B023 - called at once
            tailer.pause()
            end_sessions(url)
            other.start()
            seen = load.count
            until(lambda: load.count > seen + 50)  # noqa: B023 - called at once
            tailer.resume()
            tailer.await_state("standing by")
            tailer.kill()
            assert other.is_running
            other.stop()
        tailer.start()
    require_equal(url, where, load.count)
    tailer.stop()


# ---- faults of the topics


def partitions_of(kafka: Kafka, name: str) -> int:
    return len(admin(kafka).list_topics(timeout=ANSWER_S_MAX).topics[name].partitions)


def delete_records(kafka: Kafka, name: str) -> None:
    """Delete records as retention does."""
    places = [TopicPartition(name, number, -1) for number in range(QUEUES)]  # -1: all
    client = admin(kafka)
    for future in client.delete_records(places).values():
        future.result(ANSWER_S_MAX)


def forget_notes(kafka: Kafka, prefix: str) -> None:
    """Delete stored offsets, as Kafka does after `offsets.retention.minutes`."""
    client = admin(kafka)
    for future in client.delete_consumer_groups([f"{prefix}{MIRROR}"]).values():
        future.result(ANSWER_S_MAX)


def test_mirror_continues_at_its_position_after_kafka_deleted_records(
    *, url: str, where: str, kafka: Kafka, kafka_prefix: str, load: Load, tailer: TailerProcess
) -> None:
    kept_from = {queue: 0 for queue in load.ends}
    for are_notes_kept in (True, False):
        load.write(30)
        tailer.start()
        report = require_equal(url, where, load.count - sum(kept_from.values()))
        assert report.table_only == sum(kept_from.values())
        tailer.stop()
        delete_records(kafka, f"{kafka_prefix}trade")
        kept_from = dict(load.ends)
        if not are_notes_kept:
            forget_notes(kafka, kafka_prefix)
    ends = kept_from
    load.write(30)
    tailer.start()
    report = require_equal(url, where, load.count - sum(ends.values()))
    assert report.table_only == sum(ends.values())
    tailer.stop()
    with closing(KafkaSink(where)) as sink:
        for queue, end in ends.items():
            marks = sink.marks("trade", QueueNumber(queue), 0, 10**9)
            assert [mark.offset for mark in marks] == list(range(end, load.ends[queue]))


def test_topics_get_the_requested_copies_and_new_partitions_for_added_queues(
    *, url: str, where: str, kafka: Kafka, kafka_prefix: str, load: Load, new_tailer: NewTailer
) -> None:
    tailer = new_tailer("--replication-factor", "1", "--min-insync-replicas", "1")
    load.write(10)
    tailer.start()
    require_equal(url, where, load.count)
    name = f"{kafka_prefix}trade"
    assert partitions_of(kafka, name) == QUEUES
    resource = ConfigResource(ResourceType.TOPIC, name)
    client = admin(kafka)
    config = client.describe_configs([resource])[resource].result(ANSWER_S_MAX)
    assert config["min.insync.replicas"].value == "1"
    assert config["min.insync.replicas"].source == 1, "it is not the topic's own"

    with psycopg.connect(url) as connection:
        connection.execute("insert into txmsg.queue (topic_id, number) select id, 3 from txmsg.topic")
        connection.execute("update txmsg.topic set queue_count = 4, ordered_queues = 4")
    load.ends[3] = 0
    load.write(30)
    require_equal(url, where, load.count)
    assert partitions_of(kafka, name) == 4
    tailer.stop()


def test_more_copies_than_nodes_stop_the_queues_with_a_reason(
    url: str, load: Load, new_tailer: NewTailer, private_kafka: PrivateKafka
) -> None:
    tailer = new_tailer("--replication-factor", "9")
    load.write(10)
    tailer.start()
    assert "replication factor" in stops_of(url)["trade", 0].lower()
    tailer.stop()


def test_topic_name_or_message_refused_by_kafka_stops_only_its_queue(
    *, url: str, where: str, kafka: Kafka, kafka_prefix: str, load: Load, tailer: TailerProcess
) -> None:
    make_queues(url, "100%25", 1)
    make_queues(url, "small", 1)
    create_topic(kafka, f"{kafka_prefix}small", max_message_bytes="3000")
    large = written("small", 0, 0)._replace(body=random.Random(1).randbytes(10_000))
    store(url, [written("100%25", 0, 0), large])
    load.write(20)
    tailer.start()
    require_stopped = stops_of(url)
    assert set(require_stopped) == {("100%25", 0), ("small", 0)}
    assert "not a valid name there" in require_stopped["100%25", 0]
    assert "too large" in require_stopped["small", 0]
    report = verify(url, where, topics=["trade"], wait_s=WAIT_S_MAX)
    assert report.is_equal
    assert report.messages == load.count
    tailer.stop()


def test_topic_different_from_its_table_is_not_written_until_fork_recreates_it(
    url: str, where: str, load: Load, tailer: TailerProcess
) -> None:
    load.write(60)
    tailer.start()
    require_equal(url, where, load.count)
    tailer.stop()
    end = load.ends[1]
    with psycopg.connect(url) as connection:
        connection.execute(
            "delete from txmsg.message where queue_offset >= %s and queue = "
            "(select q.id from txmsg.queue q where q.number = 1)",
            (end - 3,),
        )
    store(url, [written("trade", 1, offset)._replace(body=b"another") for offset in range(end - 3, end + 5)])
    load.ends[1] = end + 5
    tailer.start()
    assert f"topic trade queue 1: from offset {end - 3} on" in stops_of(url)["trade", 1]
    tailer.stop()
    assert verify(url, where).differing["different"] == 3

    forked = json_of("tailer", "fork", "--storage", url, "--metaq", where, "--yes")
    assert forked["deleted_topics"] == ["trade"]
    with psycopg.connect(url) as connection:
        assert connection.execute("select from txmsg.mirror_queue").fetchall() == []
    tailer.start()
    load.write(10)
    require_equal(url, where, load.count)
    tailer.stop()
    assert json_of("tailer", "fork", "--storage", url, "--metaq", where, "--yes")["cuts"] == []


def test_lost_and_foreign_records_stop_their_queues(
    *, url: str, where: str, kafka: Kafka, kafka_prefix: str, load: Load, tailer: TailerProcess
) -> None:
    load.write(40)
    tailer.start()
    require_equal(url, where, load.count)
    tailer.stop()
    with closing(KafkaSink(where)) as sink:  # more was committed than exists
        note = f"{load.ends[0] + 2} {bytes(16).hex()} 0 1"
        sink._writer.write([PartitionWrite(KafkaPartition(f"{kafka_prefix}trade", 0), (), note, 1)])
    other = Producer({"bootstrap.servers": kafka.servers})
    other.produce(f"{kafka_prefix}trade", b"of another program", partition=1)
    assert other.flush(ANSWER_S_MAX) == 0
    trade = f"{kafka_prefix}trade"
    copied = copy_records(kafka, TopicPartition(trade, 0), TopicPartition(trade, 1))
    load.write(20)
    tailer.start()
    stops = stops_of(url)
    assert set(stops) == {("trade", 0), ("trade", 1)}
    assert f"but {load.ends[0] + 1} was committed" not in stops["trade", 0]  # later messages are not in Kafka
    assert "Kafka has lost" in stops["trade", 0]
    assert "was not written by a mirror" in stops["trade", 1]
    tailer.stop()
    assert verify(url, where).differing["foreign"] == 1 + copied

    forget_notes(kafka, kafka_prefix)  # as the reason of the stop advises for lost records
    tailer.start()
    assert set(stops_of(url)) == {("trade", 1)}
    tailer.stop()
