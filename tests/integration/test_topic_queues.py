"""A topic gets more queues while messages are in transit: none is lost, none stored twice, all are delivered."""

from __future__ import annotations

import asyncio
import json

import psycopg
import pytest
from click.testing import CliRunner
from psycopg import AsyncConnection

from tests.batch_calls import apply_batch
from tests.conftest import StartBroker
from tests.integration.batch_harness import Notify, columns_of, running_writer
from tests.integration.client_harness import WAIT_S, collecting, message_count
from tests.integration.delivery_harness import delivering, notify_at, receive
from tests.waiting import until_async
from txmsg.administration.topics import AlterTopic, CreateTopic, TopicChange, TopicWithSettings
from txmsg.broker.config import BrokerConfig
from txmsg.broker.store.batch import WriteBatch
from txmsg.broker.store.topic_settings import TopicAdministration
from txmsg.broker.store.topics import TopicRegistry
from txmsg.client import AsyncProducer, Producer
from txmsg.errors import MisuseError, TopicClosed, UnknownTopic
from txmsg.message import QUEUES_MAX, Message, MessageId
from txmsg.ops.cli.main import main
from txmsg.wire.method import checked


async def test_concurrent_raises_of_the_queue_count_leave_the_higher_one(notify_url: str) -> None:
    async with notify_at(notify_url, queues=2) as notify:
        await notify.ensure("t")
        first = await notify.queue_ids()
        settings = TopicAdministration(notify.topics._pool)
        changes = (settings.alter("t", TopicChange(queues=count)) for count in (3, 5, 7, 9))
        results = await asyncio.gather(*changes, return_exceptions=True)
        assert isinstance(results[-1], TopicWithSettings)
        assert all(isinstance(result, TopicWithSettings | MisuseError) for result in results)
        assert await notify.topics.refresh_once() == ["t"]
        queue_ids = await notify.queue_ids()
        assert len(queue_ids) == 9
        assert queue_ids[:2] == first, "the queues that were there are what they were"
        assert await notify.topics.refresh_once() == []
    with psycopg.connect(notify_url) as connection:
        rows = connection.execute(
            "select t.queue_count, array_agg(q.number order by q.number) "
            "from txmsg.topic t join txmsg.queue q on q.topic_id = t.id group by t.id"
        ).fetchall()
    assert rows == [(9, list(range(9)))]


async def test_a_queue_count_out_of_range_or_for_no_topic_is_refused(notify_url: str) -> None:
    async with notify_at(notify_url) as notify:
        await notify.ensure("t")
        for count in (0, QUEUES_MAX + 1):
            with pytest.raises(MisuseError, match=f"change.queues={count} .* from 1 to {QUEUES_MAX}"):
                checked(AlterTopic(topic="t", change=TopicChange(queues=count)))
        with pytest.raises(UnknownTopic, match="nowhere"):
            await notify.grow(2, "nowhere")


@pytest.mark.parametrize("neighbours_count", [0, 50])
@pytest.mark.parametrize("first_stands", [True, False])
async def test_concurrent_copies_with_different_queues_are_one_message(
    db: Notify, notify_url: str, *, first_stands: bool, neighbours_count: int
) -> None:
    """One broker knows the topic with four queues, the other with eight; the first copy is not visible yet."""
    neighbours = columns_of([db.queues[1]] * neighbours_count)
    copy = columns_of(db.queues[1:2])
    copy.extend(neighbours)
    async with running_writer(BrokerConfig(storage=notify_url)) as (writer, _, ends):
        with psycopg.connect(notify_url) as other:
            call = apply_batch(
                plain_id="%(ids)s::uuid[]",
                plain_n="'{0}'",
                plain_queue="%(queues)s",
                plain_body="array['body'::bytea]",
                plain_born_at="array[now()]",
            )
            other.execute(f"select {call}".encode(), {"ids": [copy.transaction_id[0].hex()], "queues": [db.queues[0]]})
            writing = asyncio.create_task(writer.write(WriteBatch(plain=copy), 1))
            async with asyncio.timeout(60):
                while await db.rows("select from pg_locks where not granted and locktype = 'transactionid'") == []:
                    assert not writing.done(), "the copy is stored beside the first one"
            other.commit() if first_stands else other.rollback()
        assert await writing == {}
        assert ends.get(db.queues[1], 0) == neighbours_count + (not first_stands)
    await db.assert_dense()
    count = neighbours_count + 1
    assert await db.rows("select count(*), count(distinct transaction_id) from txmsg.message") == [(count, count)]


_WAIT_BEFORE_THE_SECOND = """
create function wait_here() returns trigger language plpgsql as $$
begin
    perform pg_advisory_xact_lock_shared(1, 1);
    return new;
end $$;
create trigger wait_here before insert on txmsg.message_1
    for each row when (new.queue in (%s, %s)) execute function wait_here();
"""


async def test_crossing_copies_with_different_queues_are_repeated_until_each_is_one_message(
    db: Notify, notify_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The one remaining deadlock: two messages are repeated at the same time, with crossing queues."""
    one, two, three, four = db.queues
    forth = columns_of([one, two])
    # A batch inserts queue by queue, so the second message first.
    back = columns_of([four, three], ids=forth.transaction_id)
    config = BrokerConfig(storage=notify_url)
    with psycopg.connect(notify_url, autocommit=True) as holder:
        holder.execute((_WAIT_BEFORE_THE_SECOND % (two, four)).encode())
        holder.execute("select pg_advisory_lock(1, 1)")
        async with running_writer(config) as (writer, _, _), running_writer(config) as (other, _, _):
            writing = asyncio.gather(
                writer.write(WriteBatch(plain=forth), 1),
                other.write(WriteBatch(plain=back), 1),
            )
            async with asyncio.timeout(60):
                while len(await db.rows("select from pg_locks where locktype = 'advisory' and not granted")) < 2:
                    assert not writing.done(), "they were to wait in the middle"
            holder.execute("select pg_advisory_unlock(1, 1)")
            assert not any(await writing), "each is answered as stored"
    told = {record.getMessage() for record in caplog.records}
    assert told == {"a batch is repeated: the Notify database cannot work now: deadlock detected"}
    await db.assert_dense()
    assert await db.rows("select count(*), count(distinct transaction_id) from txmsg.message") == [(2, 2)]


async def test_a_waiting_group_gets_messages_from_new_queues(notify_url: str) -> None:
    async with notify_at(notify_url) as notify, delivering(notify, poll_s=0.05) as delivery:
        waiting = asyncio.create_task(receive(delivery, 10))
        await until_async(lambda: "g" in delivery._state.groups)
        await notify.grow(5)
        await notify.add(2)
        got = await waiting
        assert sorted((message.queue, message.offset) for message in got) == [
            (number, offset) for number in range(5) for offset in range(2)
        ]


async def test_brokers_under_load_use_new_queues_and_lose_nothing(start_broker: StartBroker, notify_url: str) -> None:
    brokers = [start_broker(), start_broker()]
    sent: set[MessageId] = set()

    with collecting(",".join(broker.address for broker in brokers), "orders") as got:
        async with (
            await AsyncConnection.connect(notify_url, autocommit=True) as connection,
            AsyncProducer([broker.address for broker in brokers], group="shop") as producer,
            asyncio.timeout(120),
        ):
            sent.add(await producer.send(Message("orders", b"first")))
            command = ["topic", "alter", "orders", "--queues", "8", "--json", "--broker", brokers[1].address]
            raised = await asyncio.to_thread(CliRunner().invoke, main, command)
            assert json.loads(raised.output)["write_queues"] == 8
            used = 0
            while used < 8:
                # Each producer chooses a broker, and that sends to the queues which it delivers.
                async with AsyncProducer([broker.address for broker in brokers], group="shop") as another:
                    sent.update(await asyncio.gather(*(another.send(Message("orders", b"more")) for _ in range(50))))
                cursor = await connection.execute("select count(distinct queue) from txmsg.message")
                ((used,),) = await cursor.fetchall()
        received: set[MessageId] = set()
        while received != sent:  # one may come twice: queues move from broker to broker
            received.add(got.get(timeout=WAIT_S).id)
            assert received <= sent
    assert message_count(notify_url) == len(sent), "some are stored twice"


def test_a_topic_without_permission_to_write_refuses_its_messages_and_no_others(
    start_broker: StartBroker, notify_url: str
) -> None:
    with psycopg.connect(notify_url, autocommit=True) as connection:
        connection.execute(
            "insert into txmsg.topic (name, queue_count, ordered_queues, permission) values ('closed', 1, 1, 4)"
        )
        connection.execute("insert into txmsg.queue (topic_id, number) select id, 0 from txmsg.topic")
    with Producer(start_broker().address, group="p") as producer:
        with pytest.raises(TopicClosed, match="'closed' accepts no messages now"):
            producer.send(Message("closed", b"x"))
        producer.send(Message("open", b"x"))
    with psycopg.connect(notify_url) as connection:
        rows = connection.execute(
            "select t.name from txmsg.message m join txmsg.queue q on q.id = m.queue "
            "join txmsg.topic t on t.id = q.topic_id"
        ).fetchall()
    assert rows == [("open",)]


async def test_cached_topics_are_read_again_after_a_pause_before_use(
    notify_url: str,
) -> None:
    now_s = 0.0

    async with notify_at(notify_url, queues=2) as notify:
        topics = TopicRegistry(notify.topics._pool, auto_create=True, queues=2, monotonic=lambda: now_s)
        await topics.ensure("t")
        notify.query("update txmsg.topic set permission = 4, version = version + 1")
        now_s = 7.9
        known = topics.known("t")
        assert known is not None
        assert known.is_writable, "nobody has looked yet"
        now_s = 8.1
        assert topics.known("t") is None
        assert not (await topics.ensure("t")).is_writable
        notify.query("delete from txmsg.queue")
        notify.query("delete from txmsg.topic")
        assert await topics.refresh_once() == ["t"]
        assert topics.known("t") is None
        first = (await topics.ensure("t")).queue_ids
        notify.query("delete from txmsg.queue")
        notify.query("delete from txmsg.topic")
        await notify.topics.create(CreateTopic(topic="t", queues=2))
        assert await topics.refresh_once() == ["t"], "it was made anew by another broker"
        assert (await topics.ensure("t")).queue_ids != first
