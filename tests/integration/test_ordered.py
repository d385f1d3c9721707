"""Ordering keys in the batch function: a decided message waits for earlier undecided ones of its key (I5)."""

from __future__ import annotations

import asyncio
import random
from dataclasses import fields
from itertools import pairwise
from uuid import UUID

from psycopg import AsyncConnection

from tests.integration.batch_harness import Notify, columns_of, running_writer
from txmsg.broker.config import BrokerConfig
from txmsg.broker.store.batch import DecidedBy, WriteBatch, apply
from txmsg.broker.store.connect import connect_writer, open_pool
from txmsg.broker.store.halves import HalfMessages
from txmsg.broker.store.scheduled import Scheduled
from txmsg.broker.store.topics import StoredTopic
from txmsg.checker.policy import ParkReason
from txmsg.message import QueueId, TransactionId
from txmsg.message.columns import Columns


def ordered(db: Notify, *keys: str) -> Columns:
    """Return one message for each key, "" for none; a key is always in the same queue."""
    columns = columns_of([db.queues[sum(map(ord, key)) % 4] for key in keys], producer=db.producer)
    columns.ordering_key = list(keys)
    return columns


def joined(first: Columns, second: Columns) -> Columns:
    """Return both as one batch, as when a broker gets them at once."""
    return Columns(**{each.name: [*getattr(first, each.name), *getattr(second, each.name)] for each in fields(Columns)})


async def in_queues(db: Notify) -> list[bytes]:
    """Return the transactions that have entered their queues, in order within each."""
    rows = await db.rows("select transaction_id from txmsg.message order by queue, segment, queue_offset")
    return [row[0].bytes for row in rows]


async def held_back(db: Notify) -> set[bytes]:
    rows = await db.rows("select transaction_id from txmsg.half_message where decided")
    return {row[0].bytes for row in rows}


async def test_a_commit_waits_for_an_earlier_undecided_half_of_its_key(db: Notify) -> None:
    half = ordered(db, "a", "a", "a", "b", "")
    first, second, third, other_key, without_key = half.transaction_id
    await db.apply(WriteBatch(half=half))
    applied = await db.apply(WriteBatch(commit=[third, second, other_key, without_key]))
    assert applied.problems == {}
    assert set(await in_queues(db)) == {other_key, without_key}
    assert await held_back(db) == {second, third}
    await db.apply(WriteBatch(commit=[first]))
    assert [each for each in await in_queues(db) if each in half.transaction_id[:3]] == [first, second, third]
    assert await db.rows("select count(*) from txmsg.half_message") == [(0,)]
    await db.assert_dense()


async def test_commit_held_back_after_it_was_claimed_is_not_parked_and_others_are(db: Notify) -> None:
    half = ordered(db, "a", "a", "")
    _, claimed, unanswered = half.transaction_id
    await db.apply(WriteBatch(half=half))
    await db.apply(WriteBatch(commit=[claimed]))
    async with open_pool(db.url) as pool:
        await HalfMessages(pool).park(
            [TransactionId(UUID(bytes=each)) for each in (claimed, unanswered)], ParkReason.CHECKS_USED_UP
        )
    assert await held_back(db) == {claimed}
    rows = await db.rows("select transaction_id from txmsg.half_message where parked_reason is not null")
    assert [row[0].bytes for row in rows] == [unanswered]


async def test_a_rollback_releases_held_back_messages(db: Notify) -> None:
    half = ordered(db, "a", "a", "a", "a")
    await db.apply(WriteBatch(half=half))
    await db.apply(WriteBatch(commit=half.transaction_id[1:2]))
    await db.apply(WriteBatch(commit=half.transaction_id[3:]))
    applied = await db.apply(WriteBatch(rollback=half.transaction_id[:1]))
    assert sum(applied.ends.values()) == 1, "its broker is not told that a queue has grown"
    assert await in_queues(db) == half.transaction_id[1:2]
    assert await held_back(db) == {half.transaction_id[3]}
    await db.apply(WriteBatch(rollback=half.transaction_id[2:3]))
    assert await in_queues(db) == [half.transaction_id[1], half.transaction_id[3]]


async def test_outcomes_of_one_batch_are_released_in_the_order_of_halves(db: Notify) -> None:
    half = ordered(db, *["a"] * 6)
    half.transaction_id.sort(reverse=True)  # the ids are in another order
    await db.apply(WriteBatch(half=half))
    await db.apply(
        WriteBatch(
            commit=[half.transaction_id[5], half.transaction_id[3], half.transaction_id[2]],
            rollback=[half.transaction_id[0], half.transaction_id[4]],
        )
    )
    assert await in_queues(db) == []
    await db.apply(WriteBatch(commit=[half.transaction_id[1]]))
    assert await in_queues(db) == [
        half.transaction_id[1],
        half.transaction_id[2],
        half.transaction_id[3],
        half.transaction_id[5],
    ]


async def test_halves_of_several_batches_keep_their_storage_order(db: Notify) -> None:
    halves = [ordered(db, "a") for _ in range(5)]
    for half in reversed(halves):
        await db.apply(WriteBatch(half=half))
    await db.apply(WriteBatch(commit=[half.transaction_id[0] for half in halves]))
    assert await in_queues(db) == [half.transaction_id[0] for half in reversed(halves)]


async def test_a_half_repeated_in_a_batch_keeps_the_order_of_its_messages(db: Notify) -> None:
    """All its messages are numbered by one of request and copy, not partly by each."""
    for copies in range(2, 8):
        half = ordered(db, *["a"] * 5)
        half.transaction_id, half.n = half.transaction_id[:1] * 5, [*range(5)]
        twice = half
        for _ in range(copies - 1):
            twice = joined(twice, half)
        await db.apply(WriteBatch(half=twice))
        await db.apply(WriteBatch(commit=half.transaction_id[:1]))
    rows = await db.rows("select n from txmsg.message order by queue_offset")
    assert [n for (n,) in rows] == [*range(5)] * 6


async def test_a_held_back_commit_is_final(db: Notify) -> None:
    half = ordered(db, "a", "a")
    await db.apply(WriteBatch(half=half))
    waits = half.transaction_id[1]
    for _ in range(2):
        assert (await db.apply(WriteBatch(commit=[waits]))).problems == {}
    assert (await db.apply(WriteBatch(rollback=[waits]))).problems == {waits: "conflict"}
    assert (await db.apply(WriteBatch(half=half))).problems == {waits: "resolved"}
    assert await held_back(db) == {waits}
    await db.apply(WriteBatch(check=[waits]))
    checked = await db.rows("select transaction_id from txmsg.half_message where next_check_at is not null")
    assert [row[0].bytes for row in checked] == half.transaction_id[:1], "what is decided is not asked about any more"


async def test_a_plain_message_is_held_back_like_a_commit_and_stored_once(db: Notify) -> None:
    half, plain, other = ordered(db, "a", "a"), ordered(db, "a", "a"), ordered(db, "b")
    await db.apply(WriteBatch(half=half))
    await db.apply(WriteBatch(plain=plain))
    await db.apply(WriteBatch(plain=other))
    assert await in_queues(db) == other.transaction_id
    assert (await db.apply(WriteBatch(plain=plain))).problems == {}
    changed = plain.only({plain.transaction_id[0]})
    changed.body = [b"another"]
    assert (await db.apply(WriteBatch(plain=changed))).problems == {plain.transaction_id[0]: "other"}
    late = ordered(db, "a")
    await db.apply(WriteBatch(commit=half.transaction_id[:1], plain=late))
    assert [each for each in await in_queues(db) if each not in other.transaction_id] == half.transaction_id[:1]
    await db.apply(WriteBatch(rollback=half.transaction_id[1:]))
    assert [each for each in await in_queues(db) if each not in other.transaction_id] == [
        half.transaction_id[0],
        *plain.transaction_id,
        *late.transaction_id,
    ]
    stored = await db.rows("select transaction_id, decided_by, half_stored_at is null from txmsg.message")
    assert {(row[0].bytes, *row[1:]) for row in stored if row[0].bytes != half.transaction_id[0]} == {
        (each, 0, True) for each in [*plain.transaction_id, *late.transaction_id, *other.transaction_id]
    }


async def test_each_message_of_a_transaction_waits_for_its_own_key(db: Notify) -> None:
    first, both = ordered(db, "a"), ordered(db, "b", "a", "")
    both.transaction_id, both.n = [both.transaction_id[0]] * 3, [0, 1, 2]
    await db.apply(WriteBatch(half=first))
    await db.apply(WriteBatch(half=both))
    assert (await db.apply(WriteBatch(commit=both.transaction_id[:1]))).problems == {}
    assert await db.rows("select n from txmsg.message order by n") == [(0,), (2,)]
    # A late copy finds some of its rows gone and one waiting: it removes what it has stored, not that.
    assert (await db.apply(WriteBatch(half=both))).problems == {both.transaction_id[0]: "resolved"}
    assert await db.rows("select n from txmsg.half_message where decided") == [(1,)]
    assert (await db.apply(WriteBatch(rollback=both.transaction_id[:1]))).problems == {
        both.transaction_id[0]: "conflict"
    }
    await db.apply(WriteBatch(rollback=first.transaction_id))
    assert await db.rows("select n from txmsg.message order by n") == [(0,), (1,), (2,)]
    assert await db.rows("select count(*) from txmsg.half_message") == [(0,)]


async def test_the_decider_is_stored_with_the_message(db: Notify) -> None:
    half = ordered(db, "a", "a", "", "")
    await db.apply(WriteBatch(half=half))
    by_check, by_person, by_client = half.transaction_id[1], half.transaction_id[2], half.transaction_id[3]
    await db.apply(
        WriteBatch(
            commit=[by_check, by_person, by_client], decided_by={by_check: DecidedBy.CHECK, by_person: DecidedBy.PERSON}
        )
    )
    await db.apply(WriteBatch(commit=half.transaction_id[:1]))
    stored = await db.rows("select transaction_id, decided_by from txmsg.message")
    assert {row[0].bytes: row[1] for row in stored} == {
        half.transaction_id[0]: 1,
        by_check: 2,
        by_person: 3,
        by_client: 1,
    }


# ---- many wait


async def _waiting(db: Notify, count: int) -> tuple[bytes, list[bytes]]:
    """Return the half that holds back `count` others of its key, and these."""
    head = ordered(db, "a")
    await db.apply(WriteBatch(half=head))
    waiting: list[bytes] = []
    for _ in range(count // 4000):
        half = ordered(db, *["a"] * 4000)
        await db.apply(WriteBatch(half=half))
        await db.apply(WriteBatch(commit=half.transaction_id))
        waiting += half.transaction_id
    return head.transaction_id[0], waiting


async def test_held_back_messages_are_released_in_bounded_batches(db: Notify) -> None:
    head, waiting = await _waiting(db, 12_000)
    applied = await db.apply(WriteBatch(commit=[head]))
    moved = len(await in_queues(db))
    assert 1 < moved < 12_000
    assert applied.more == [waiting[moved - 1]]
    late = ordered(db, "a")
    await db.apply(WriteBatch(half=late))
    assert (await db.apply(WriteBatch(commit=late.transaction_id, check=applied.more))).more == []
    assert await in_queues(db) == [head, *waiting, *late.transaction_id], (
        "the last one overtook those that waited still"
    )


async def test_a_writer_continues_until_all_released_messages_have_moved(db: Notify) -> None:
    head, waiting = await _waiting(db, 20_000)
    async with running_writer(BrokerConfig(storage=db.url)) as (writer, _, _):
        assert await writer.write(WriteBatch(commit=[head]), 40) == {}
        async with asyncio.timeout(60):
            while await db.rows("select count(*) from txmsg.message") != [(20_001,)]:
                pass
    assert await in_queues(db) == [head, *waiting]


async def test_messages_left_behind_between_two_batches_are_found(db: Notify) -> None:
    head, _ = await _waiting(db, 12_000)
    held = ordered(db, "b", "b", "c")
    await db.apply(WriteBatch(half=held))
    await db.apply(WriteBatch(commit=held.transaction_id[1:]))

    class Segment:
        open, previous = 1, 0

        async def refresh(self) -> None:
            raise AssertionError("the segment did not change")

    async with open_pool(db.url) as pool:
        scheduled = Scheduled(pool, Segment())
        assert await scheduled.left_behind(10) == []
        more = (await db.apply(WriteBatch(commit=[head]))).more
        left = await scheduled.left_behind(10)
        assert [each.bytes for each in left] == more, "and the key that is held back is not among them"


# ---- many at once


_NOTE_ORDER = (
    "create table public.stored (order_seq bigint, transaction_id uuid, n int, queue int, ordering_key text)",
    "create function public.note() returns trigger language plpgsql as $$ begin insert into public.stored values "
    "(new.order_seq, new.transaction_id, new.n, new.queue, new.ordering_key); return null; end $$",
    "create trigger note after insert on txmsg.half_message for each row when (new.ordering_key is not null) "
    "execute function public.note()",
)
"""Records the storage order of halves, which is lost with their rows."""


async def test_many_writers_with_few_keys_keep_the_storage_order_of_halves(db: Notify) -> None:
    """Half of the transactions end late, some in another session, some twice, some by rollback."""
    rng = random.Random(5)
    keys = ["a", "b", "c", "", ""]
    rolled_back: set[bytes] = set()
    left: list[bytes] = []

    async def writer(turn: int) -> None:
        async with await connect_writer(db.url, lock_timeout_s=120, transaction_timeout_s=240) as connection:

            async def write(batch: WriteBatch) -> None:
                await apply(connection, batch, segment=1, previous=0, first_check_s=6)

            for _ in range(25):
                half = ordered(db, *rng.choices(keys, k=rng.randint(1, 8)))
                for row in range(1, len(half.transaction_id)):
                    if rng.random() < 0.3:  # several messages of one transaction
                        half.transaction_id[row], half.n[row] = half.transaction_id[row - 1], half.n[row - 1] + 1
                await write(WriteBatch(half=half))
                if rng.random() < 0.2:
                    await write(WriteBatch(half=half))
                left.extend(dict.fromkeys(half.transaction_id))
                rng.shuffle(left)
                ends = [left.pop() for _ in range(min(len(left), rng.randint(0, 9)))]
                rollback = [end for end in ends if rng.random() < 0.2]
                rolled_back.update(rollback)
                outcomes = WriteBatch(
                    commit=[end for end in ends if end not in rollback],
                    rollback=rollback,
                    plain=ordered(db, *rng.choices(keys, k=rng.randint(0, 2))),
                )
                await write(outcomes)
                if rng.random() < 0.2:
                    await write(outcomes)

    for statement in _NOTE_ORDER:
        await db.connection.execute(statement.encode())
    async with asyncio.timeout(120), asyncio.TaskGroup() as tasks:
        for turn in range(4):
            tasks.create_task(writer(turn))
    assert {row[0].bytes for row in await db.rows("select transaction_id from txmsg.half_message")} >= set(left)
    await db.apply(WriteBatch(commit=left))
    assert await db.rows("select count(*) from txmsg.half_message") == [(0,)], "all are decided, and some wait still"
    rows = await db.rows(
        "select m.queue, m.ordering_key, min(s.order_seq) "
        "from txmsg.message m join public.stored s using (transaction_id, n) "
        "where m.ordering_key is not null group by m.queue, m.ordering_key, m.queue_offset order by 1, m.queue_offset"
    )
    by_key: dict[tuple[int, str], list[int]] = {}
    for queue, key, order_seq in rows:
        by_key.setdefault((queue, key), []).append(order_seq)
    assert len(by_key) == 3
    assert sum(map(len, by_key.values())) > 100
    for of_key in by_key.values():
        assert all(earlier < later for earlier, later in pairwise(of_key))
    await db.assert_dense()
    lost = await db.rows(
        "select count(distinct transaction_id) from txmsg.message m join txmsg.rolled_back r using (transaction_id)"
    )
    assert lost == [(0,)]


async def test_an_uncommitted_half_delays_the_numbering_of_its_queue(db: Notify) -> None:
    """Otherwise a later number could be committed while an earlier one is not visible."""
    first, second = ordered(db, "a"), ordered(db, "a")
    async with await AsyncConnection.connect(db.url) as other:  # a batch of the queue that is not visible yet
        await other.execute("select pg_advisory_xact_lock(7705, %s)", (first.queue[0] % 1024,))
        storing = asyncio.create_task(db.apply(WriteBatch(half=second)))
        async with await AsyncConnection.connect(db.url, autocommit=True) as watcher:
            async with asyncio.timeout(60):
                while True:
                    cursor = await watcher.execute(
                        "select count(*) from pg_locks where not granted and locktype = 'advisory' and classid = 7705"
                    )
                    if await cursor.fetchone() == (1,):
                        break
        assert not storing.done()
        await other.commit()
    assert (await storing).problems == {}


def test_all_messages_of_a_key_go_to_one_queue_of_their_topic() -> None:
    """The queue number is on disk in all databases: it must never change."""
    topic = StoredTopic(
        "orders",
        tuple(map(QueueId, (11, 12, 13, 14))),
        write_queues=2,
        ordered_queues=3,
        version=0,
        read_queues=4,
        permission=6,
        send_rate_max=None,
    )
    assert [topic.queue_of(key) for key in ("a", "order-4711", "Müller", "注文")] == [11, 12, 12, 12]
