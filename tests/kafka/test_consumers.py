"""A consumer of a log in Kafka: the same as in a directory."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

from tests.kafka.copies import append_with_copies as append
from tests.kafka_server import Kafka, admin
from tests.metaq.consumers import WAIT_S, Seen, stored
from tests.waiting import until, until_async
from txmsg.client.app import Txmsg
from txmsg.consumer.failures import Retry
from txmsg.consumer.options import ConsumerOptions
from txmsg.errors import MisuseError, UnknownGroup
from txmsg.message import ReceivedMessage
from txmsg.metaq import AsyncPullConsumer, LogAccess, PullConsumer, open_log
from txmsg.metaq.consumer.options import LogOptions, Missing
from txmsg.metaq.consumer.push_consumer import AsyncPushConsumer
from txmsg.metaq.interface import LogQueue
from txmsg.wire.start import Start

pytestmark = pytest.mark.long

T0, T1 = LogQueue("t", 0), LogQueue("t", 1)


@pytest.fixture
def where(kafka: Kafka, kafka_prefix: str) -> str:
    return f"{kafka.address}/{kafka_prefix}"


@pytest.fixture
def log(where: str) -> Iterator[LogAccess]:
    with open_log(where) as access:
        yield access


async def test_handlers_get_each_queue_in_order_and_resume_at_the_stored_offset(log: LogAccess, where: str) -> None:
    append(log, "t", 0, 300)
    append(log, "t", 1, 5)
    for later in (0, 7):
        seen = Seen()
        consumer = AsyncPushConsumer(where, "g")
        consumer.subscribe("t")(seen)
        if later:
            append(log, "t", 0, later)
        expected = {0: list(range(300, 307))} if later else {0: list(range(300)), 1: list(range(5))}
        async with consumer:
            await until_async(lambda: seen.offsets == expected)  # noqa: B023
        assert stored(log, "g") == {T0: 300 + later, T1: 5}
        assert log.group("g").members == (), "it has left"


async def test_only_requested_tags_are_delivered_and_the_others_count_as_handled(log: LogAccess, where: str) -> None:
    for _ in range(2):
        append(log, "t", 0, 4, tags=["a", "b", "", "c"])
        append(log, "t", 1, 9)
    seen = Seen()
    consumer = AsyncPushConsumer(where, "g")
    consumer.subscribe("t", "a || c")(seen)
    async with consumer:
        await until_async(lambda: seen.offsets == {0: [0, 3, 4, 7]})
        await until_async(lambda: stored(log, "g") == {T0: 8, T1: 18})


@pytest.mark.parametrize("start", [Start.earliest(), Start.latest()])
async def test_running_consumer_reads_new_queues_and_topics_from_their_first_message(
    log: LogAccess, where: str, start: Start
) -> None:
    append(log, "t", 0, 2)
    seen = Seen()
    consumer = AsyncPushConsumer(where, "g", ConsumerOptions(start=start))
    consumer.subscribe("t")(seen)
    consumer.subscribe("later")(seen)
    async with consumer:
        await until_async(consumer.queues)
        append(log, "t", 0, 1)
        append(log, "t", 5, 2)
        append(log, "later", 7, 1)
        old = [0, 1] if start == Start.earliest() else []
        await until_async(lambda: seen.offsets == {0: [*old, 2], 5: [0, 1], 7: [0]})


async def test_every_broadcasting_member_gets_every_message_and_a_named_one_resumes(log: LogAccess, where: str) -> None:
    append(log, "t", 0, 2)
    seen = {name: Seen() for name in ("passing", "named")}
    for broadcast, name in ((True, "passing"), ("host-1", "named")):
        consumer = AsyncPushConsumer(where, "g", ConsumerOptions(broadcast=broadcast))
        consumer.subscribe("t")(seen[name])
        async with consumer:
            await until_async(consumer.queues)
            end = append(log, "t", 0, 1)
            await until_async(lambda: seen[name].offsets == {0: [end - 1]})  # noqa: B023
    assert list(stored(log, "g%host-1").values()) == [4]
    append(log, "t", 0, 1)
    again = AsyncPushConsumer(where, "g", ConsumerOptions(broadcast="host-1"))
    again.subscribe("t")(seen["named"])
    async with again:
        await until_async(lambda: seen["named"].offsets == {0: [3, 4]})
    assert log.groups() == ["g%host-1"], "a passing group was left behind"


async def test_polled_and_uncommitted_messages_are_redelivered(log: LogAccess, where: str) -> None:
    append(log, "t", 0, 5)
    append(log, "t", 1, 4)
    for is_committed, ends in ((False, [5, 4]), (True, [5, 4])):
        consumer = AsyncPullConsumer(where, "g")
        consumer.subscribe("t")
        async with consumer:
            got: dict[int, list[int | None]] = {0: [], 1: []}
            while sum(map(len, got.values())) < sum(ends):
                batches = await consumer.poll(WAIT_S)
                assert batches, "nothing came"
                for each in batches:
                    got[each.queue] += [message.offset for message in each.messages()]
            assert got == {queue: list(range(end)) for queue, end in enumerate(ends)}
            if is_committed:
                await consumer.commit()
    assert stored(log, "g") == {T0: 5, T1: 4}


def test_a_sync_consumer_polls_seeks_and_stops_at_once(log: LogAccess, where: str) -> None:
    for queue in (0, 1):
        for second in (1, 2):
            append(log, "t", queue, 3, at_us=1_000_000 * second)
    consumer = PullConsumer(where, "g")
    consumer.subscribe("t")

    def polled(count: int) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        while len(found) < count:
            batches = consumer.poll(WAIT_S)
            assert batches, "nothing came"
            found += [(each.queue, row) for each in batches for row in each.to_arrow()["offset"].to_pylist()]
        return sorted(found)

    with consumer:
        both = [(queue, offset) for queue in (0, 1) for offset in range(6)]
        assert polled(12) == both
        consumer.pause("t", 1)
        consumer.seek("t", 0, Start.offset(4))
        consumer.seek("t", 1, Start.earliest())
        assert polled(2) == [(0, 4), (0, 5)]
        consumer.resume("t")
        assert polled(6) == both[6:]
        consumer.seek("t", 0, Start.at(datetime.fromtimestamp(2, UTC)))
        assert polled(3) == [(0, 3), (0, 4), (0, 5)]
        consumer.seek("t", 0, Start.latest())
        consumer.commit()
        assert stored(log, "g") == {T0: 6, T1: 6}
        waiter = threading.Thread(target=lambda: consumer.poll(1000))
        waiter.start()
    waiter.join(WAIT_S)
    assert not waiter.is_alive(), "a poll went on after the stop"


@pytest.mark.parametrize(("missing", "first", "missed"), [("earliest", 2, 2), ("latest", 3, 3)])
async def test_messages_deleted_by_kafka_are_counted_and_skipped_as_configured(  # noqa: PLR0917
    kafka: Kafka, kafka_prefix: str, log: LogAccess, where: str, missing: Missing, first: int, missed: int
) -> None:
    append(log, "t", 0, 3)
    member = log.join("g", ["t"])
    until(lambda: member.view().queues)
    assert member.take_queues([T0]) == {T0: 0}
    member.leave({})
    client = admin(kafka)
    [deleted] = client.delete_records([TopicPartition(f"{kafka_prefix}t", 0, 2)]).values()
    deleted.result(WAIT_S)
    seen = Seen()
    consumer = AsyncPushConsumer(where, "g", of_log=LogOptions(missing=missing))
    consumer.subscribe("t")(seen)
    async with consumer:
        await until_async(lambda: consumer.missed_count == missed)
        append(log, "t", 0, 1)
        await until_async(lambda: seen.offsets.get(0, [])[-1:] == [3])
        assert seen.offsets == {0: list(range(first, 4))}


async def test_seek_moves_a_running_member_and_a_group_without_members(log: LogAccess, where: str) -> None:
    append(log, "t", 0, 4)
    append(log, "t", 1, 1)
    seen = Seen()
    consumer = AsyncPushConsumer(where, "g")
    consumer._balance_s = 0.05
    consumer.subscribe("t")(seen)
    async with consumer:
        await until_async(lambda: seen.offsets == {0: [0, 1, 2, 3], 1: [0]})
        for _ in range(2):  # the same wish again is another one
            count = len(seen.messages)
            await asyncio.to_thread(log.seek, "g", {T0: 2})
            await until_async(lambda: [each.offset for each in seen.messages[count:]] == [2, 3])  # noqa: B023
    assert stored(log, "g") == {T0: 4, T1: 1}
    log.seek("g", {T0: 1})
    assert stored(log, "g") == {T0: 1, T1: 1}
    again = Seen()
    consumer = AsyncPushConsumer(where, "g")
    consumer.subscribe("t")(again)
    async with consumer:
        await until_async(lambda: again.offsets == {0: [1, 2, 3]})
    assert stored(log, "g") == {T0: 4, T1: 1}


async def test_group_moved_by_another_program_continues_there(
    kafka: Kafka, kafka_prefix: str, log: LogAccess, where: str
) -> None:
    append(log, "t", 0, 4)
    client = admin(kafka)
    name = f"{kafka_prefix}g"
    moved = ConsumerGroupTopicPartitions(name, [TopicPartition(f"{kafka_prefix}t", 0, 3)])
    client.alter_consumer_group_offsets([moved])[name].result(WAIT_S)
    assert stored(log, "g") == {T0: 3}
    seen = Seen()
    consumer = AsyncPushConsumer(where, "g")
    consumer.subscribe("t")(seen)
    async with consumer:
        await until_async(lambda: seen.offsets == {0: [3]})


def test_deleting_a_group_deletes_its_retries(log: LogAccess, kafka: Kafka, kafka_prefix: str) -> None:
    append(log, "t", 0, 4)
    member = log.join("g", ["t"], start=Start.latest())
    until(lambda: member.view().queues)
    assert member.take_queues([T0]) == {T0: 4}
    with pytest.raises(MisuseError, match="group g has 1 members, such as"):
        log.delete_group("g")
    member.leave({T0: 3})
    append(log, "%RETRY%g", 0, 1)
    log.delete_group("g")
    with pytest.raises(UnknownGroup, match="group g is unknown to kafka://"):
        log.group("g")
    assert log.groups() == []
    until(lambda: log.queues_of("%RETRY%g") == [])
    with pytest.raises(UnknownGroup):
        log.delete_group("g")


def test_kafka_assigns_queues_to_members(log: LogAccess) -> None:
    with pytest.raises(MisuseError, match=r"strategy 'by_turns' cannot share out queues of kafka://.*leave out"):
        log.join("g", ["t"], strategy="by_turns")


async def test_application_reads_kafka_in_batches_of_one_queue_with_retries(log: LogAccess, where: str) -> None:
    append(log, "t", 0, 30)
    append(log, "t", 1, 30)
    app, seen = Txmsg(log=where, group="g"), Seen()

    @app.subscribe("t", source="log", batch=10, retry=Retry(delays_s=[0.01]))
    def handle(messages: list[ReceivedMessage]) -> list[Exception | None]:
        assert len({message.queue for message in messages}) == 1
        for message in messages:
            seen(message)
        fails = [message.offset == 3 and message.attempt == 1 for message in messages]
        return [ValueError("not yet") if failed else None for failed in fails]

    async with app:
        await until_async(lambda: len(seen.messages) == 62)
    assert {queue: sorted(set(offsets)) for queue, offsets in seen.offsets.items()} == {
        0: list(range(30)),
        1: list(range(30)),
    }
