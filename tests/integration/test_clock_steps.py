"""The database clock is stepped while everything runs: no wait becomes longer, and all brokers stay alive.

`ahead`: the clock was an hour ahead, and is set right. `back`: it was right, and is set back by an hour.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import create_engine

from tests.broker_process import running_broker
from tests.integration.batch_harness import Notify as Database
from tests.integration.batch_harness import notify
from tests.integration.delivery_harness import T, delivering, notify_at, offsets, poll, receive, receive_only
from tests.stepped import SteppedServer, stepped_server
from tests.waiting import until_async
from txmsg.administration.topics import TopicChange
from txmsg.broker.cluster import Registry
from txmsg.broker.config import BrokerConfig
from txmsg.broker.delivery.values import Refusal
from txmsg.broker.store import alerts as alerts_store
from txmsg.broker.store import brokers as brokers_store
from txmsg.broker.store import consumer_groups as groups_store
from txmsg.broker.store.batch import WriteBatch, apply
from txmsg.broker.store.connect import open_pool, session
from txmsg.broker.store.halves import HalfMessages
from txmsg.broker.store.topic_settings import TopicAdministration
from txmsg.broker.waits import Waits
from txmsg.checker.ports import Askable
from txmsg.checker.tables import create_tables
from txmsg.client.outbox import rows
from txmsg.message import new_transaction_id_bytes

HOUR_S = 3600.0
AHEAD, BACK = (HOUR_S, 0.0), (0.0, -HOUR_S)
LEASE_TTL_S = 5.0
WAIT_S = 900.0
"""The waits of these tests: longer than a test on a busy machine, and much shorter than the step."""
steps = pytest.mark.parametrize("step", [pytest.param(AHEAD, id="ahead"), pytest.param(BACK, id="back")])


@pytest.fixture(scope="module")
def server() -> Iterator[SteppedServer]:
    with stepped_server() as running:
        yield running


@pytest.fixture
def url(server: SteppedServer) -> Iterator[str]:
    """A fresh Notify database with a correct clock."""
    server.set_by(0.0)
    with server.notify() as url:
        yield url
        server.set_by(0.0)


@pytest.fixture
async def db(url: str) -> AsyncIterator[Database]:
    async with notify(url) as database:
        yield database


def renewing(url: str, pool: object) -> Waits:
    return Waits(pool, BrokerConfig(storage=url), on_renewed=lambda: None)  # type: ignore[arg-type]


async def wait_s(db: Database, what: str) -> list[float]:
    """Return the remaining wait of rows by the present clock."""
    return [row[0] for row in await db.rows(f"select extract(epoch from w.wait)::float8 from (select {what}) w(wait)")]


async def until_rows(db: Database, statement: str) -> None:
    """Wait until there is a row."""
    async with asyncio.timeout(200):
        while not await db.rows(statement):  # noqa: ASYNC110 - the database says nothing by itself
            await asyncio.sleep(0.05)


async def store_halves(db: Database) -> None:
    """Store a half that was not checked yet and one that was."""
    for first_check_s in (WAIT_S, 0.0):
        await apply(db.connection, WriteBatch(half=db.columns(1)), segment=1, previous=0, first_check_s=first_check_s)
    async with open_pool(db.url) as pool:
        claim = await HalfMessages(pool).claim_due(
            [Askable(group="shop", fence_id=None, interval_s=6.0)], limit=10, since=None
        )
    assert len(claim.halves) == 1


async def store_delayed(db: Database) -> None:
    """Store a scheduled message and one of an undecided transaction, with a delay; and two with an absolute time."""
    delayed, at_a_time = db.columns(1), db.columns(1)
    delayed.deliver_after_us = [round(WAIT_S * 1_000_000)]
    at_a_time.deliver_at_us = [time.time_ns() // 1000 + round(WAIT_S * 1_000_000)]
    for columns in (delayed, at_a_time):
        await db.apply(WriteBatch(plain=columns))
        await db.apply(WriteBatch(half=replace(columns, transaction_id=[new_transaction_id_bytes()])))


DELAYED_IN = (
    "max(deliver_at) - now() from (select deliver_at, deliver_after from txmsg.scheduled union all "
    "select deliver_at, deliver_after from txmsg.half_message) m where deliver_after is not null"
)
CHECKED_IN = "max(next_check_at) - now() from txmsg.half_message"
RETRIED_IN = "max(due_at) - now() from txmsg.retry"


async def fail_one(url: str) -> None:
    """Let a message fail that is retried after WAIT_S."""
    async with notify_at(url) as seen, delivering(seen) as delivery:
        await seen.add(1)
        (message,) = await receive(delivery, 1)
        await delivery.settle("g", "c", [], [Refusal(message.receipt, "boom", WAIT_S)])


@steps
async def test_a_clock_step_does_not_change_the_waits_of_halves_and_retries(
    server: SteppedServer, db: Database, step: tuple[float, float], tmp_path: Path
) -> None:
    before, after = step
    server.set_by(before)
    await db.rows(
        "update txmsg.segment set opened_at = now() where state = 'open' returning id"
    )  # otherwise the broker opens another one
    await fail_one(db.url)
    log = tmp_path / "broker.log"
    with running_broker(db.url, log=log):
        await until_async(lambda: "broker.started" in log.read_text() or "listens on" in log.read_text())
        await store_halves(db)
        await store_delayed(db)
        await until_rows(db, "select from txmsg.broker where heartbeat_at > now() - interval '5 s'")
        server.set_by(after)
        waiting = f"select {CHECKED_IN}", f"select {RETRIED_IN}", f"select {DELAYED_IN}"
        for statement in waiting:
            await until_rows(db, f"select from ({statement}) w(wait) where wait <= interval '{WAIT_S} s'")
        await until_async(lambda: "wait again from now on" in log.read_text())
    told = log.read_text()
    assert "the clock of the database was set back by 36" in told


@steps
async def test_waits_are_renewed_once_with_their_former_length(
    server: SteppedServer, db: Database, step: tuple[float, float]
) -> None:
    server.set_by(step[0])
    await store_halves(db)
    await store_delayed(db)
    await fail_one(db.url)
    server.set_by(step[1])
    assert max(await wait_s(db, CHECKED_IN)) > HOUR_S - WAIT_S / 2
    assert max(await wait_s(db, RETRIED_IN)) > HOUR_S - WAIT_S / 2
    assert max(await wait_s(db, DELAYED_IN)) > HOUR_S - WAIT_S / 2
    at_a_time = "select deliver_at from txmsg.scheduled where deliver_after is null"
    asked = await db.rows(at_a_time)
    async with open_pool(db.url) as pool:
        waits = renewing(db.url, pool)
        await waits.renew_once()
        due = await db.rows("select next_check_at from txmsg.half_message union select due_at from txmsg.retry")
        assert 0 < max(await wait_s(db, CHECKED_IN)) <= WAIT_S
        assert 0 < max(await wait_s(db, RETRIED_IN)) <= WAIT_S
        assert 0 < max(await wait_s(db, DELAYED_IN)) <= WAIT_S
        assert await db.rows(at_a_time) == asked
        await waits.renew_once()
        assert await db.rows("select next_check_at from txmsg.half_message union select due_at from txmsg.retry") == due


@steps
async def test_waits_from_before_two_cancelling_steps_are_not_changed(
    server: SteppedServer, db: Database, step: tuple[float, float]
) -> None:
    server.set_by(-2 * HOUR_S)
    await db.apply(WriteBatch(half=db.columns(1)))
    server.set_by(step[0])
    server.set_by(step[1])
    due = await db.rows("select next_check_at, stored_at from txmsg.half_message")
    async with open_pool(db.url) as pool:
        await renewing(db.url, pool).renew_once()
    assert await db.rows("select next_check_at, stored_at from txmsg.half_message") == due


@steps
@pytest.mark.parametrize("broker_id", ["b1", "b2"], ids=["the same id", "another id"])
async def test_queues_of_a_broker_that_died_before_a_backward_step_are_reassigned_in_time(
    server: SteppedServer, url: str, step: tuple[float, float], broker_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    server.set_by(step[0])
    async with notify_at(url) as seen:
        await seen.add(3)
        async with delivering(seen, "b1", graceful=False, lease_ttl_s=LEASE_TTL_S) as delivery:
            await receive_only(delivery, 3)
        server.set_by(step[1])
        async with delivering(seen, broker_id, lease_ttl_s=LEASE_TTL_S) as delivery:
            assert offsets(await receive(delivery, 3)) == [0, 1, 2]
            if broker_id == "b2":
                assert "broker b1 sends no heartbeats: its queues are assigned to others" in caplog.text
                async with open_pool(url) as pool:
                    await Registry(pool).forget_broker("b1")
    assert "the clock of the database was set back" in caplog.text


async def test_a_backward_step_while_no_broker_ran_is_noticed_by_the_next_broker(
    server: SteppedServer, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    server.set_by(HOUR_S)
    async with notify_at(url) as seen, delivering(seen) as delivery:
        assert delivery._membership.leases.is_held()
    assert "the clock of the database" not in caplog.text
    server.set_by(0.0)
    async with notify_at(url) as seen, delivering(seen):
        assert "the clock of the database was set back before this broker started" in caplog.text
    caplog.clear()
    async with notify_at(url) as seen, delivering(seen):
        assert "the clock of the database" not in caplog.text, "it is told once"


async def test_live_brokers_are_not_marked_dead_by_a_forward_step(server: SteppedServer, url: str) -> None:
    async with notify_at(url) as seen, delivering(seen, "b1", background=False) as one:
        async with delivering(seen, "b2", background=False, graceful=False) as other:
            for delivery in (one, other):
                await delivery._membership.step_once()
            read_s = one._membership.leases.clock.read_s
            server.set_by(HOUR_S)
            async with open_pool(url) as pool, session(pool) as conn:
                assert await brokers_store.mark_dead(conn, {}, expired_at_s=read_s) == [], "between heartbeat and look"
            for delivery in (one, other, one):
                await delivery._membership.step_once()
            assert seen.query("select id, state from txmsg.broker order by id") == [("b1", "active"), ("b2", "active")]
            assert (one._state.leases.losses, other._state.leases.losses) == (0, 0)


async def test_held_ordered_messages_are_waited_for_after_a_forward_step(server: SteppedServer, url: str) -> None:
    async with notify_at(url) as seen, delivering(seen, "b2", background=False) as heir:
        await seen.queue_ids()
        seen.query("update txmsg.broker set state = 'draining'")  # the other broker has the queues
        async with delivering(seen, "b1", graceful=False) as delivery:
            await seen.add(1)
            seen.query("update txmsg.message set ordering_key = 'k'")
            (message,) = await receive(delivery, 1, visibility_timeout_s=HOUR_S / 2)
        assert seen.query("select held_until > now() from txmsg.cursor") == [(True,)]
        server.set_by(HOUR_S)
        await heir._membership.step_once()
        seen.query("update txmsg.broker set state = case id when 'b1' then 'dead' else 'active' end")
        await heir._membership.step_once()
        await heir.receive(poll("g", "c", T, 1, 0, 60))
        (feed,) = heir._state.groups["g"].feeds.values()
        assert feed.opens_at is not None, f"{message} may be in the hands of its consumer"
        held_until = seen.query("select held_until, held_until > now() from txmsg.cursor")
        assert held_until[0][1], "the time is stored again"
        heir.drop("the database was away")
        await heir._membership.step_once()
        await heir.receive(poll("g", "c", T, 1, 0, 60))
        (feed,) = heir._state.groups["g"].feeds.values()
        assert feed.opens_at is not None
        again = seen.query("select held_until, held_until > now() from txmsg.cursor")
        assert again == held_until, "it does not wait from the beginning"


async def test_groups_in_use_at_other_brokers_are_kept_after_a_forward_step(server: SteppedServer, url: str) -> None:
    async with notify_at(url) as seen, delivering(seen, background=False) as delivery:
        async with open_pool(url) as pool, session(pool) as conn:
            await groups_store.create_group(conn, "g%1", HOUR_S / 2)
        await delivery._membership.step_once()
        server.set_by(HOUR_S)
        await delivery._membership.step_once()
        await delivery.maintenance.upkeep_once()
        assert seen.query("select name from txmsg.consumer_group") == [("g%1",)]


@steps
async def test_the_outbox_lease_of_a_dead_process_expires_after_a_backward_step(
    server: SteppedServer, step: tuple[float, float]
) -> None:
    dead, other = uuid4(), uuid4()
    with server.empty() as url:
        engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:", 1))
        create_tables(engine)
        with engine.connect() as connection:
            server.set_by(step[0])
            assert rows.take_turn(connection, "shop", dead)
            assert not rows.take_turn(connection, "shop", other)
            server.set_by(step[1])
            assert rows.take_turn(connection, "shop", other)
            assert not rows.take_turn(connection, "shop", dead)
        server.set_by(0.0)
        engine.dispose()


@steps
async def test_a_clock_step_does_not_delay_alert_notifications_and_topic_changes(
    server: SteppedServer, db: Database, step: tuple[float, float]
) -> None:
    server.set_by(step[0])
    async with open_pool(db.url) as pool:
        async with session(pool) as conn:
            await alerts_store.add_notification(conn, "r", {})
            assert await alerts_store.claim_notification(conn, "r", 60.0) is not None
        await TopicAdministration(pool).alter("orders", TopicChange(write_queues=2))
        server.set_by(step[1])
        await renewing(db.url, pool).renew_once()
        (waits_s,) = await wait_s(db, "max(next_try_at) - now() from txmsg.alert_notification")
        assert waits_s <= 300
        (settling_s,) = await wait_s(db, "now() - max(write_changed_at) from txmsg.topic")
        assert settling_s >= 0, "the change is not in the future"
