"""The batch function on a real database: every rule that the comments in 0001_functions.sql state."""

from __future__ import annotations

import asyncio
import random
from uuid import UUID

import psycopg
import pytest
from psycopg import AsyncConnection

from tests.integration.batch_harness import Notify
from txmsg.broker.store.batch import STALE_SEGMENT, DecidedBy, WriteBatch, apply
from txmsg.broker.store.connect import connect_writer
from txmsg.message import new_transaction_id


async def test_a_half_becomes_a_message_only_when_committed(db: Notify) -> None:
    half = db.columns(3)
    assert (await db.apply(WriteBatch(half=half))).ends == {}
    assert await db.rows("select count(*) from txmsg.message") == [(0,)]
    applied = await db.apply(WriteBatch(commit=half.transaction_id[:2], rollback=half.transaction_id[2:]))
    assert applied.problems == {}
    assert sum(applied.ends.values()) == 2
    assert {row[0].bytes for row in await db.rows("select transaction_id from txmsg.message")} == set(
        half.transaction_id[:2]
    )
    assert await db.rows("select count(*) from txmsg.half_message") == [(0,)]


async def test_a_repeated_outcome_is_accepted_and_the_opposite_one_refused(db: Notify) -> None:
    half = db.columns(2)
    await db.apply(WriteBatch(half=half))
    committed, rolled_back = half.transaction_id
    for _ in range(2):
        assert (await db.apply(WriteBatch(commit=[committed], rollback=[rolled_back]))).problems == {}
    refused = await db.apply(WriteBatch(commit=[rolled_back], rollback=[committed]))
    assert refused.problems == {committed: "conflict", rolled_back: "conflict"}
    assert await db.rows("select count(*) from txmsg.message") == [(1,)]


async def test_an_outcome_of_an_unknown_transaction_is_answered_as_expired(db: Notify) -> None:
    ids = [new_transaction_id().bytes for _ in range(2)]
    assert (await db.apply(WriteBatch(commit=ids[:1], rollback=ids[1:]))).problems == dict.fromkeys(ids, "expired")


async def test_a_transaction_of_another_producer_group_is_unknown(db: Notify) -> None:
    half = db.columns(3)
    await db.apply(WriteBatch(half=half))
    committed, rolled_back, asked = half.transaction_id
    ends = WriteBatch(commit=[committed], rollback=[rolled_back], check=[asked])
    ends.groups = dict.fromkeys(half.transaction_id, "stranger")
    ends.decided_by = decided_by = {committed: DecidedBy.PERSON, rolled_back: DecidedBy.PERSON}
    checks = await db.rows("select transaction_id, next_check_at from txmsg.half_message order by 1")
    foreign = await db.apply(ends)
    assert foreign.problems == dict.fromkeys(half.transaction_id, "expired")
    assert foreign.ends == {}
    assert await db.rows("select transaction_id, next_check_at from txmsg.half_message order by 1") == checks
    assert await db.rows("select count(*) from txmsg.rolled_back") == [(0,)]
    # Beside an undecided one: each keeps its outcome and its decider.
    groups = {committed: "stranger", rolled_back: "shop", asked: "shop"}
    mixed = await db.apply(
        WriteBatch(commit=[committed], rollback=[rolled_back, asked], groups=groups, decided_by=decided_by)
    )
    assert mixed.problems == {committed: "expired"}
    assert await db.rows("select transaction_id from txmsg.half_message") == [(UUID(bytes=committed),)]
    by = await db.rows("select transaction_id, decided_by from txmsg.rolled_back")
    assert sorted(by) == sorted([(UUID(bytes=rolled_back), 3), (UUID(bytes=asked), 1)])
    own = await db.apply(WriteBatch(commit=[committed], groups={committed: "shop"}))
    assert own.problems == {}
    assert await db.rows("select transaction_id from txmsg.message") == [(UUID(bytes=committed),)]


async def test_a_late_copy_of_a_decided_half_is_not_stored(db: Notify) -> None:
    half = db.columns(2)
    await db.apply(WriteBatch(half=half))
    await db.apply(WriteBatch(commit=half.transaction_id[:1], rollback=half.transaction_id[1:]))
    assert (await db.apply(WriteBatch(half=half))).problems == dict.fromkeys(half.transaction_id, "resolved")
    assert await db.rows("select count(*) from txmsg.half_message") == [(0,)]


async def test_a_late_copy_waiting_for_the_commit_is_not_stored(db: Notify) -> None:
    half = db.columns(1)
    await db.apply(WriteBatch(half=half))
    async with await AsyncConnection.connect(db.url) as other:  # a commit that is not visible yet
        await other.execute("delete from txmsg.half_message")
        await other.execute(
            "insert into txmsg.message (segment, queue, queue_offset, transaction_id, n, body, born_at) "
            "values (1, 1, 0, %s, 0, '', now())",
            (half.transaction_id[0].hex(),),
        )
        late = asyncio.create_task(db.apply(WriteBatch(half=half)))
        async with await AsyncConnection.connect(db.url, autocommit=True) as watcher:
            while True:  # until the late copy waits for the deletion
                cursor = await watcher.execute(
                    "select count(*) from pg_locks where not granted and locktype = 'transactionid'"
                )
                if await cursor.fetchone() == (1,):
                    break
        await other.commit()
    assert (await late).problems == {half.transaction_id[0]: "resolved"}
    assert await db.rows("select count(*) from txmsg.half_message") == [(0,)]


async def test_a_repeated_half_is_one_half_and_different_content_is_refused(db: Notify) -> None:
    half = db.columns(2)
    await db.apply(WriteBatch(half=half))
    assert (await db.apply(WriteBatch(half=half))).problems == {}
    other = db.columns(2, ids=half.transaction_id)
    other.body[1] = b"another"
    assert (await db.apply(WriteBatch(half=other))).problems == {half.transaction_id[1]: "other"}
    assert await db.rows("select distinct body from txmsg.half_message") == [(b"body",)]


async def test_a_repeated_plain_send_is_stored_once(db: Notify) -> None:
    plain = db.columns(3)
    await db.apply(WriteBatch(plain=plain))
    assert (await db.apply(WriteBatch(plain=plain))).problems == {}
    plain.body[0] = b"another"
    assert (await db.apply(WriteBatch(plain=plain))).problems == {plain.transaction_id[0]: "other"}
    assert await db.rows("select count(*) from txmsg.message") == [(3,)]


async def test_a_plain_message_under_the_id_of_a_transaction_is_refused(db: Notify) -> None:
    half, plain = db.columns(2), db.columns(1)
    undecided, rolled_back = half.transaction_id
    await db.apply(WriteBatch(half=half))
    await db.apply(WriteBatch(rollback=[rolled_back]))
    plain.extend(half)
    assert (await db.apply(WriteBatch(plain=plain))).problems == {undecided: "other", rolled_back: "other"}
    assert [row[0].bytes for row in await db.rows("select transaction_id from txmsg.message")] == plain.transaction_id[
        :1
    ]


async def test_two_contents_with_one_id_in_one_batch_are_distinguished(db: Notify) -> None:
    plain, half = db.columns(2), db.columns(2)
    for columns in (plain, half):
        columns.extend(columns.only({columns.transaction_id[0]}))
        columns.body[2] = b"another"
    applied = await db.apply(WriteBatch(plain=plain, half=half))
    assert applied.problems == {plain.transaction_id[0]: "other", half.transaction_id[0]: "other"}
    assert await db.rows("select body from txmsg.message") == [(b"body",)] * 2
    assert await db.rows("select body from txmsg.half_message") == [(b"body",)] * 2


async def test_messages_of_one_plain_send_are_deduplicated_one_by_one(db: Notify) -> None:
    first = db.columns(1)
    await db.apply(WriteBatch(plain=first))
    more = db.columns(2, ids=first.transaction_id * 2)
    more.n[1] = 1
    assert (await db.apply(WriteBatch(plain=more))).problems == {}
    assert await db.rows("select n from txmsg.message order by n") == [(0,), (1,)]


@pytest.mark.parametrize("column", ["key", "tag", "headers", "queue"])
async def test_a_repeat_with_any_difference_is_different_content(db: Notify, column: str) -> None:
    (elsewhere,) = await db.rows(
        "with made as (insert into txmsg.topic (name, queue_count, ordered_queues) "
        "values ('elsewhere', 1, 1) returning id) "
        "insert into txmsg.queue (topic_id, number) select id, 0 from made returning id"
    )
    plain, half = db.columns(2), db.columns(2)
    await db.apply(WriteBatch(plain=plain, half=half))
    for columns in (plain, half):
        getattr(columns, column)[0] = {"headers": b"h", "queue": elsewhere[0]}.get(column, "other")
    applied = await db.apply(WriteBatch(plain=plain, half=half))
    assert applied.problems == {plain.transaction_id[0]: "other", half.transaction_id[0]: "other"}


async def test_a_repeat_in_another_queue_of_its_topic_is_a_repeat(db: Notify) -> None:
    plain, half = db.columns(4), db.columns(4)
    await db.apply(WriteBatch(plain=plain, half=half))
    for columns in (plain, half):
        columns.queue = [db.queues[(db.queues.index(each) + 1) % 4] for each in columns.queue]
    assert (await db.apply(WriteBatch(plain=plain, half=half))).problems == {}
    assert await db.rows("select count(*) from txmsg.message") == [(4,)]


async def test_a_repeat_returns_the_ends_of_queues(db: Notify) -> None:
    half, plain = db.columns(9), db.columns(9)
    await db.apply(WriteBatch(half=half))
    batch = WriteBatch(plain=plain, commit=half.transaction_id)
    ends = (await db.apply(batch)).ends
    assert sum(ends.values()) == 18
    assert (await db.apply(batch)).ends == ends, "a broker whose answer was lost would not deliver them at once"


async def test_an_unknown_outcome_makes_the_check_due_at_once(db: Notify) -> None:
    half = db.columns(2)
    half.queue = [db.queues[0]] * 2
    await db.apply(WriteBatch(half=half))
    await db.connection.execute("update txmsg.half_message set next_check_at = next_check_at + interval '1 h'")
    await db.apply(WriteBatch(check=half.transaction_id[:1]))
    due = await db.rows("select transaction_id from txmsg.half_message where next_check_at < now() + interval '1 s'")
    assert [row[0].bytes for row in due] == half.transaction_id[:1]


async def test_a_segment_that_is_not_open_is_refused_and_nothing_is_stored(db: Notify) -> None:
    with pytest.raises(psycopg.DatabaseError, match="is not open") as caught:
        await db.apply(WriteBatch(plain=db.columns(1)), segment=2)
    assert caught.value.sqlstate == STALE_SEGMENT
    assert await db.rows("select count(*) from txmsg.message") == [(0,)]


async def test_offsets_and_deduplication_continue_across_a_rotation(db: Notify) -> None:
    half = db.columns(8)
    await db.apply(WriteBatch(half=half))
    await db.apply(WriteBatch(commit=half.transaction_id[:4], rollback=half.transaction_id[4:6]))
    assert await db.rows("select txmsg.rotate(1)") == [(2,)]
    assert await db.rows("select txmsg.rotate(1)") == [(2,)], "a second broker that rotates changes nothing"
    await db.apply(WriteBatch(commit=half.transaction_id[6:]), segment=2, previous=1)
    again = await db.apply(WriteBatch(half=half, commit=[], rollback=half.transaction_id[:1]), segment=2, previous=1)
    assert again.problems[half.transaction_id[0]] in ("resolved", "conflict")
    assert len(again.problems) == 8
    await db.assert_dense()


async def test_a_rotation_without_a_segment_ahead_changes_nothing(db: Notify) -> None:
    """Two brokers rotate at once: the second one finds the segment open that it saw ahead."""
    assert await db.rows("select txmsg.rotate(1)") == [(2,)]
    assert await db.rows("select txmsg.rotate(2)") == [(2,)]
    assert await db.rows("select id, state from txmsg.segment order by id") == [(1, "closed"), (2, "open")]


async def test_writers_with_repeats_in_opposite_orders_do_not_deadlock_or_leave_gaps(db: Notify) -> None:
    half = db.columns(200)
    rng = random.Random(7)

    async def writer(turn: int) -> None:
        async with await connect_writer(db.url, lock_timeout_s=120, transaction_timeout_s=240) as connection:
            order = list(range(200))
            for _ in range(5):
                rng.shuffle(order)
                copies = half.only({half.transaction_id[row] for row in order[:100]})
                ends = [half.transaction_id[row] for row in order[100:150]]
                outcome = WriteBatch(commit=ends) if turn % 2 else WriteBatch(rollback=ends)
                await apply(connection, WriteBatch(half=copies), segment=1, previous=0, first_check_s=6)
                await apply(connection, outcome, segment=1, previous=0, first_check_s=6)

    await db.apply(WriteBatch(half=half))
    async with asyncio.timeout(120), asyncio.TaskGroup() as tasks:
        for turn in range(4):
            tasks.create_task(writer(turn))
    await db.assert_dense()
    both = await db.rows("select 1 from txmsg.message m join txmsg.rolled_back r using (transaction_id)")
    assert both == []
    again = await db.rows(
        "select 1 from txmsg.half_message h where exists (select from txmsg.message m where m.transaction_id = "
        "h.transaction_id) or exists (select from txmsg.rolled_back r where r.transaction_id = h.transaction_id)"
    )
    assert again == []


async def test_half_rows_are_found_by_index_with_any_statistics(db: Notify) -> None:
    await db.connection.execute("analyze txmsg.half_message")
    plan = await db.rows(
        "explain (costs off) delete from txmsg.half_message h "
        "where h.transaction_id = any('{00000000-0000-7000-8000-000000000000}') and h.queue = any(array[1, 2])"
    )
    assert any("half_message_pkey" in row[0] for row in plan), plan
