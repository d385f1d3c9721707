"""Cursors and leases on a real PostgreSQL: crashes, takeovers, and loss of the database."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection, sql

from tests.integration.delivery_harness import (
    NEVER_S,
    T,
    delivering,
    eventually,
    new_delivery,
    notify_at,
    offsets,
    poll,
    receipts,
    receive,
    receive_only,
)
from tests.waiting import until_async
from txmsg.broker.cluster import Registry
from txmsg.broker.delivery.values import Refusal
from txmsg.broker.store import leases as leases_store
from txmsg.broker.store.connect import open_pool, session
from txmsg.errors import BrokerUnavailable, MisuseError

LEASE_S = 5.0


async def test_acknowledged_messages_are_not_redelivered_after_a_graceful_stop(notify_url: str) -> None:
    async with notify_at(notify_url) as notify:
        await notify.add(10)
        async with delivering(notify, flush_s=NEVER_S) as delivery:
            got = await receive(delivery, 10)
            await delivery.settle("g", "c", receipts([got[n] for n in (0, 1, 2, 5, 7)]), [])
        ((next_offset, acked),) = notify.query("select next_offset, acked::text from txmsg.cursor")
        assert (next_offset, acked) == (3, "{[5,6),[7,8)}")
        async with delivering(notify, "b2") as delivery:
            assert offsets(await receive_only(delivery, 5)) == [3, 4, 6, 8, 9]


async def test_after_a_crash_only_messages_with_unflushed_acknowledgements_are_redelivered(notify_url: str) -> None:
    async with notify_at(notify_url) as notify:
        await notify.add(10)
        async with delivering(notify, graceful=False, flush_s=NEVER_S) as delivery:
            got = await receive(delivery, 10)
            await delivery.settle("g", "c", receipts(got[:4]), [])
            await delivery.writer.flush_once()
            await delivery.settle("g", "c", receipts(got[4:6]), [])
        notify.bury("b1")
        async with delivering(notify) as delivery:
            assert offsets(await receive_only(delivery, 6)) == [4, 5, 6, 7, 8, 9]


async def test_a_stale_epoch_cannot_write_cursors_and_stops_delivery(notify_url: str) -> None:
    async with notify_at(notify_url) as notify:
        await notify.add(4)
        async with delivering(notify, "old", graceful=False, background=False) as old:
            assert await old.receive(poll("g", "c", T, 4, 0, 60)) == []
            await old.reader.read_once(next(iter(old._state.groups["g"].feeds.values())))
            got = await old.receive(poll("g", "c", T, 4, 0, 60))
            await old.settle("g", "c", [message.receipt for message in got], [])
            notify.bury("old")
            async with delivering(notify, "new") as new:
                assert offsets(await receive(new, 4)) == [0, 1, 2, 3]
                await old.writer.flush_once()
                assert notify.query("select next_offset from txmsg.cursor") == [(0,)]
                assert await old.receive(poll("g", "c", T, 4, 0, 60)) == []
                await old._membership.step_once()
                assert not old._state.leases.is_member, "it was taken for dead, and drops everything"


async def test_a_stale_epoch_cannot_create_retries(notify_url: str) -> None:
    async with notify_at(notify_url) as notify:
        await notify.add(1)
        async with delivering(notify, "old", graceful=False, background=False) as old:
            await old.receive(poll("g", "c", T, 4, 0, 60))
            await old.reader.read_once(next(iter(old._state.groups["g"].feeds.values())))
            (message,) = await old.receive(poll("g", "c", T, 4, 0, 60))
            notify.bury("old")
            async with delivering(notify, "new") as new:
                await until_async(lambda: bool(new._state.leases.epochs()))
                with pytest.raises(BrokerUnavailable):
                    await old.settle("g", "c", [], [Refusal(message.receipt, "boom", 0.0)])
                assert notify.query("select * from txmsg.retry") == []


async def test_a_queue_is_delivered_by_one_broker_and_after_its_stop_by_the_other(notify_url: str) -> None:
    async with notify_at(notify_url) as notify, delivering(notify, "first") as first:
        await notify.add(1)
        async with delivering(notify, "second", background=False, graceful=False) as second:
            assert await second.receive(poll("g", "c", T, 1, 0, 60)) == []
            assert not second._state.groups["g"].feeds
            await first.close()
            await second._membership.step_once()
            await second.maintenance.queues_once()
            assert list(second._state.groups["g"].feeds) == await notify.queue_ids()


async def test_a_stop_accepts_acknowledgements_until_nothing_is_in_flight(notify_url: str) -> None:
    async with notify_at(notify_url) as notify:
        await notify.add(2)
        async with delivering(notify, flush_s=NEVER_S, hand_over_s=NEVER_S) as delivery:
            got = await receive(delivery, 2)
            (feed,) = delivery._state.groups["g"].feeds.values()
            closing = asyncio.create_task(delivery.close())
            await until_async(lambda: feed.leaving)
            assert await delivery.settle("g", "c", receipts(got[:1]), []) == []
            assert not closing.done(), "one message is still out"
            assert await delivery.settle("g", "c", receipts(got[1:]), []) == []
            await asyncio.wait_for(closing, 60)
        assert notify.query("select next_offset from txmsg.cursor") == [(2,)]


async def test_a_new_broker_gets_its_queue_when_messages_in_flight_are_acknowledged(notify_url: str) -> None:
    async with (
        notify_at(notify_url, queues=2) as notify,
        delivering(notify, "old", flush_s=NEVER_S, hand_over_s=NEVER_S) as old,
    ):
        await notify.add(3)
        got = await receive(old, 6)
        async with delivering(notify, "new") as new:
            await until_async(lambda: any(feed.leaving for feed in old._state.groups["g"].feeds.values()))
            assert not new._state.leases.epochs()
            assert await old.settle("g", "c", receipts(got), []) == []
            await until_async(lambda: len(new._state.leases.epochs()) == 1)
            assert len(old._state.leases.epochs()) == 1
            assert await new.receive(poll("g", "c", T, 9, 0.2, 60)) == [], "nothing comes twice"


async def test_nothing_is_delivered_past_the_deadline_of_the_lease(notify_url: str) -> None:
    now = [100.0]
    async with (
        notify_at(notify_url) as notify,
        delivering(notify, background=False, graceful=False, monotonic=lambda: now[0], lease_ttl_s=LEASE_S) as delivery,
    ):
        await notify.add(1)
        await delivery.receive(poll("g", "c", T, 1, 0, 60))
        (feed,) = delivery._state.groups["g"].feeds.values()
        first_epoch = feed.epoch
        await delivery.reader.read_once(feed)
        now[0] += LEASE_S
        with pytest.raises(BrokerUnavailable, match="expired"):
            await delivery.receive(poll("g", "c", T, 1, 0, 60))
        await delivery._membership.step_once()
        assert await delivery.receive(poll("g", "c", T, 1, 0, 60)) == []
        (feed,) = delivery._state.groups["g"].feeds.values()
        await delivery.reader.read_once(feed)
        (message,) = await delivery.receive(poll("g", "c", T, 1, 0, 60))
        assert message.receipt.epoch > first_epoch


async def test_waiting_members_are_told_of_a_lost_database_and_delivery_resumes(notify_url: str) -> None:
    database = str(psycopg.conninfo.conninfo_to_dict(notify_url)["dbname"])
    elsewhere = psycopg.conninfo.make_conninfo(notify_url, dbname="postgres")
    async with notify_at(notify_url) as notify, delivering(notify, flush_s=NEVER_S, poll_s=0.05) as delivery:
        await notify.add(5)
        got = await receive(delivery, 2)
        await delivery.settle("g", "c", receipts(got), [])
        other = asyncio.create_task(delivery.receive(poll("other", "c", [("u", "*")], 1, 30, 60)))
        await until_async(lambda: "other" in delivery._state.groups and delivery._state.groups["other"].has_waiting)
        with psycopg.connect(elsewhere, autocommit=True, connect_timeout=10) as admin:
            name = sql.Identifier(database)
            admin.execute(sql.SQL("alter database {} with allow_connections false").format(name))
            admin.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", (database,))
            with pytest.raises(BrokerUnavailable):
                await asyncio.wait_for(other, 60)
            with pytest.raises(BrokerUnavailable):
                await delivery.receive(poll("g", "c", T, 1, 0, 60))
            admin.execute(sql.SQL("alter database {} with allow_connections true").format(name))
        again = await eventually(lambda: receive(delivery, 5))
        assert offsets(again) == [0, 1, 2, 3, 4], "the unflushed acknowledgements come again"
        assert await delivery.settle("g", "c", receipts(got), []) == receipts(got), "receipts of before are void"
        assert await delivery.settle("g", "c", receipts(again), []) == []


async def test_a_broker_paused_while_writing_failures_blocks_no_other_and_loses_that_queue(
    notify_url: str,
) -> None:
    """Writing failures locks its leases for some statements: a broker may be paused between two."""

    async with (
        notify_at(notify_url, queues=2) as notify,
        open_pool(notify_url, idle_in_transaction_s=1.0) as pool,
        delivering(notify, "paused", background=False, graceful=False) as paused,
    ):
        queue_ids = await notify.queue_ids()
        await paused._membership.step_once()
        leases = dict(paused._state.leases.epochs())
        incarnation = paused._state.leases.incarnation
        assert leases.keys() == set(queue_ids)
        holding, is_locked, taken_over = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def set_timeout(connection: AsyncConnection[Any], value: str) -> str:
            """Set the idle timeout of the transaction and return the former value."""
            cursor = await connection.execute(
                "select current_setting(name), set_config(name, %s, true) "
                "from (values ('idle_in_transaction_session_timeout')) setting (name)",
                (value,),
            )
            row = await cursor.fetchone()
            assert row is not None
            return str(row[0])

        async def write() -> None:
            async with session(pool, timeout_s=120) as connection, connection.transaction():
                timeout = await set_timeout(connection, "0")  # while the other one polls
                assert await leases_store.hold_leases(
                    connection, incarnation, "paused", {queue_ids[0]: leases[queue_ids[0]]}
                )
                holding.set()
                await is_locked.wait()
                await set_timeout(connection, timeout)
                await taken_over.wait()

        writing = asyncio.create_task(write())
        await holding.wait()
        notify.bury("paused")
        async with (
            asyncio.timeout(120),
            delivering(notify, "other", background=False, graceful=False) as other,
        ):
            assert set(other._state.leases.epochs()) == {queue_ids[1]}, "the locked one is left for the next time"
            is_locked.set()
            while set(other._state.leases.epochs()) != set(queue_ids):
                await other._membership.step_once()
            assert min(other._state.leases.epochs().values()) > max(leases.values())
        taken_over.set()
        with pytest.raises(BrokerUnavailable):
            await writing


async def test_of_two_brokers_drained_at_once_one_stays_active(notify_url: str) -> None:
    async with notify_at(notify_url) as notify, open_pool(notify_url) as pool:
        notify.query("insert into txmsg.broker (id, address, release, schema_revision, expires_at) "
                     "select id, '', '', '', now() + interval '1 h' from unnest(array['a', 'b']) id")  # fmt: skip
        with psycopg.connect(notify_url, connect_timeout=10) as heartbeat:
            heartbeat.execute("update txmsg.broker set heartbeat_at = now()")
            draining = [asyncio.create_task(Registry(pool).drain(each)) for each in ("a", "b")]
            waiting = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query ~ 'set state'"
            await until_async(lambda: notify.query(waiting) == [(2,)])
        outcomes = await asyncio.wait_for(asyncio.gather(*draining, return_exceptions=True), 60)
        (refusal,) = [outcome for outcome in outcomes if isinstance(outcome, MisuseError)]
        assert "no other broker is active" in str(refusal)
        assert notify.query("select state from txmsg.broker order by state") == [("active",), ("draining",)]


async def test_a_dead_broker_can_be_removed_and_a_live_one_cannot(notify_url: str) -> None:
    async with notify_at(notify_url) as notify, open_pool(notify_url) as pool:
        notify.query("insert into txmsg.broker (id, address, release, schema_revision, expires_at) "
                     "select id, '', '', '', now() + left_for::interval "
                     "from (values ('dead', '-1 s'), ('alive', '1 h')) broker (id, left_for)")  # fmt: skip
        registry = Registry(pool)
        await registry.forget_broker("dead")
        assert notify.query("select id from txmsg.broker") == [("alive",)]
        with pytest.raises(MisuseError, match="broker 'alive' is alive: stop it first"):
            await registry.forget_broker("alive")
        with pytest.raises(MisuseError, match="there is no broker 'dead'"):
            await registry.forget_broker("dead")


@pytest.mark.parametrize(
    ("address", "level", "words"),
    [
        ("b1:1", "INFO", "its registration of before this start holds for up to"),
        ("elsewhere:1", "WARNING", "another broker with the id b1 is alive at elsewhere:1: give each its own --id"),
    ],
)
async def test_a_broker_with_an_id_in_use_names_the_other_broker(
    notify_url: str, caplog: pytest.LogCaptureFixture, address: str, level: str, words: str
) -> None:
    caplog.set_level("INFO", "txmsg")
    async with notify_at(notify_url) as notify, open_pool(notify_url) as pool:
        notify.query("insert into txmsg.broker (id, address, release, schema_revision, expires_at) "
                     f"values ('b1', '{address}', '', '', now() + interval '1 h')")  # fmt: skip
        membership = new_delivery(pool, notify)._membership
        for _ in range(2):
            await membership.step_once()
    (told,) = [record for record in caplog.records if "this broker accepts messages but delivers none" in record.msg]
    assert told.levelname == level
    assert words in told.getMessage()


async def test_draining_answers_waiting_receives(notify_url: str) -> None:
    async with notify_at(notify_url) as notify, delivering(notify) as delivery:
        waiting = asyncio.create_task(delivery.receive(poll("g", "c", T, 1, 30, 60)))
        await until_async(lambda: "g" in delivery._state.groups and delivery._state.groups["g"].has_waiting)
        delivery.drain()
        assert await asyncio.wait_for(waiting, 29) == [], "it waited for messages"
        with pytest.raises(BrokerUnavailable, match="closing"):
            await delivery.receive(poll("g", "c", T, 1, 0, 60))


async def test_closing_twice_or_before_running_is_allowed(notify_url: str) -> None:
    async with notify_at(notify_url) as notify:
        pool = open_pool(notify.url)
        await pool.open()
        delivery = new_delivery(pool, notify)
        await delivery.close()
        await delivery.close()
        await asyncio.wait_for(delivery.run(), 60)
        async with delivering(notify) as running:
            await running.close()
            await running.close()
        assert notify.query("select id from txmsg.broker") == []
        await pool.close()


async def test_a_group_loaded_during_a_queue_handover_gets_nothing_of_that_queue(
    notify_url: str,
) -> None:
    # Only the group being loaded may wait for its retries.
    settings: dict[str, Any] = {"poll_s": 0.05, "retry_poll_s": NEVER_S}
    async with notify_at(notify_url) as notify, delivering(notify, **settings) as delivery:
        await notify.add(1)
        await receive(delivery, 1, wait_s=0)
        with psycopg.connect(notify_url, connect_timeout=10) as other:
            other.execute("lock table txmsg.retry")
            late = asyncio.create_task(delivery.receive(poll("late", "c", T, 1, 1, 60)))
            waits = "select 1 from pg_locks where not granted and relation = 'txmsg.retry'::regclass"
            await until_async(lambda: notify.query(waits) != [])
            await delivery.finish(await notify.queue_ids())
        assert await late == []
        (feed,) = delivery._state.groups["late"].feeds.values()
        assert feed.window.ready_count + feed.window.unsettled_count == 0


async def test_a_group_deleted_during_a_queue_scan_is_not_recreated(notify_url: str) -> None:
    async with notify_at(notify_url) as notify, delivering(notify, background=False, graceful=False) as delivery:
        await receive(delivery, 1, wait_s=0)
        looked, going_on = asyncio.Event(), asyncio.Event()

        async def find_queues(topic: str) -> Sequence[tuple[int, int]]:
            looked.set()
            await going_on.wait()
            return await notify.find_queues(topic)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                delivery.maintenance, "_topics", SimpleNamespace(ensure=notify.ensure, find_queues=find_queues)
            )
            looking = asyncio.create_task(delivery.maintenance.queues_once())
            await looked.wait()
            notify.query("delete from txmsg.consumer_group")
            await delivery.maintenance.settings_once()
            going_on.set()
            await looking
        assert notify.query("select name from txmsg.consumer_group") == []
