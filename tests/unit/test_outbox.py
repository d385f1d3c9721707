"""Parts of the outbox that need no broker: rows on SQLite, and the relay with a simulated broker."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from click.testing import CliRunner
from sqlalchemy import create_engine, delete, event, func, insert, select, text, update
from sqlalchemy.dialects import sqlite
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from txmsg.checker.fence import AsyncFence, FenceCheckListener
from txmsg.checker.tables import create_tables, fence_table, outbox_table
from txmsg.client import AsyncProducer, Producer, transactional_message
from txmsg.client.outbox import relay as relaying
from txmsg.client.outbox import rows
from txmsg.client.outbox.circuit_breaker import PROBE_INTERVAL_S, CircuitBreaker
from txmsg.client.outbox.options import Outbox
from txmsg.client.outbox.packed import packed, unpacked
from txmsg.client.outbox.relay import OutboxRelay
from txmsg.client.outbox.state import OutboxState
from txmsg.client.sending.batch import FreshEntry
from txmsg.client.sending.half import Half
from txmsg.errors import BrokerUnavailable, InvalidMessage, MessageTooLarge, MisuseError, UnknownTopic
from txmsg.message import Message, TransactionState, new_transaction_id, now_us
from txmsg.ops.cli.outbox import outbox

GROUP = "shop"
PATIENCE_S = 60.0


class PlayedBroker:
    """A simulated broker that stores halves and outcomes. on_store: called for each message."""

    def __init__(self) -> None:
        self.halves: dict[UUID, list[bytes]] = {}
        self.outcomes: dict[UUID, TransactionState] = {}
        self.on_store: Callable[[Message], object] = lambda _: None

    async def store(self, messages: Sequence[Message], _born_at_us: int) -> Half:
        self.on_store(messages[0])
        transaction_id = new_transaction_id()
        self.halves[transaction_id] = [message.body for message in messages]
        return Half(transaction_id.bytes, b"s" * 16)

    def tell(self, half: Half, state: TransactionState) -> None:
        self.outcomes[half.transaction_id] = state

    def delivered(self) -> list[bytes]:
        """Return the committed messages in the order of their halves."""
        committed = TransactionState.COMMIT
        return [body for each, bodies in self.halves.items() if self.outcomes.get(each) is committed for body in bodies]


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[AsyncEngine]:
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'shop.db'}")
    await create_tables(engine)
    yield engine
    await engine.dispose()


@pytest.fixture
def fence(engine: AsyncEngine) -> AsyncFence:
    return AsyncFence(engine)


@pytest.fixture
def played() -> PlayedBroker:
    return PlayedBroker()


@pytest.fixture
async def relay(fence: AsyncFence, played: PlayedBroker) -> OutboxRelay:
    return new_relay(fence, played)


def new_relay(fence: AsyncFence, played: PlayedBroker) -> OutboxRelay:
    return OutboxRelay(fence, GROUP, OutboxState(), store=played.store, tell=played.tell)


async def keep(engine: AsyncEngine, *bodies: bytes, key: str | None = None, group: str = GROUP) -> None:
    """Commit a transaction with messages in the outbox."""
    transaction_id = new_transaction_id()
    kept = packed(transaction_id, [Message("order", body, ordering_key=key) for body in bodies])
    async with engine.begin() as connection:
        await connection.run_sync(lambda c: rows.write(Session(c), group, transaction_id, key, kept))


async def count(engine: AsyncEngine, table: object = outbox_table) -> int:
    async with engine.connect() as connection:
        return int(await connection.scalar(select(func.count()).select_from(table)))  # type: ignore[arg-type]


def fail(error: Exception) -> Callable[[Message], object]:
    def refuse(_: Message) -> object:
        raise error

    return refuse


# ---- rows as bytes


def test_messages_in_the_outbox_round_trip() -> None:
    messages = [
        Message("order", b"1", key="k", tag="t", headers={"a": "b"}, ordering_key="o"),
        Message("mail", b"2", deliver_at=datetime(2027, 1, 1, tzinfo=UTC)),
        Message("order", b"", ordering_key="o"),
    ]
    found, born_at_us = unpacked(packed(new_transaction_id(), messages), now_us())
    assert found == messages
    assert born_at_us > 0


@pytest.mark.parametrize(("passed_s", "left_s"), [(0, 60), (20, 40), (90, 0), (-3600, 60)])
def test_the_elapsed_part_of_a_delay_is_subtracted(passed_s: int, left_s: int) -> None:
    text = packed(new_transaction_id(), [Message("mail", b"", deliver_after=timedelta(seconds=60))])
    _, born_at_us = unpacked(text, now_us())
    (message,), _ = unpacked(text, born_at_us + passed_s * 1_000_000)
    assert (message.deliver_at, message.deliver_after) == (None, timedelta(seconds=left_s))


# ---- the relay


async def test_a_relayed_row_becomes_a_message_and_is_deleted(
    engine: AsyncEngine, relay: OutboxRelay, played: PlayedBroker
) -> None:
    await keep(engine, b"1", b"2")
    assert await relay.run_once() == 1
    assert played.delivered() == [b"1", b"2"]
    assert await count(engine) == 0
    assert await relay.run_once() == 0


async def test_two_concurrent_relays_deliver_once(engine: AsyncEngine, fence: AsyncFence, played: PlayedBroker) -> None:
    for n in range(5):
        await keep(engine, str(n).encode(), key="k")
    first, second = new_relay(fence, played), new_relay(fence, played)
    both_have_stored = asyncio.Barrier(2)
    finish_first = first._finish

    async def finish_late(page: relaying._RelayedRows) -> int:
        await both_have_stored.wait()
        return await finish_first(page)

    finish_second = second._finish

    async def finish_after(page: relaying._RelayedRows) -> int:
        await both_have_stored.wait()
        return await finish_second(page)

    first._finish, second._finish = finish_late, finish_after  # type: ignore[method-assign]
    pages = (each._relay_pages() for each in (first, second))
    done = [page.relayed for page in await asyncio.gather(*pages)]
    assert len(played.halves) == 10, "both have stored all"
    assert done.count(5) == 1
    assert played.delivered() == [b"0", b"1", b"2", b"3", b"4"]
    # A check-back of the others never leads to a second delivery.
    others = [each for each, state in played.outcomes.items() if state is TransactionState.UNKNOWN]
    assert {await fence.check(each) for each in others} == {TransactionState.ROLLBACK}  # type: ignore[arg-type]


async def test_a_half_of_a_relay_that_died_before_the_commit_is_rolled_back_by_the_check_back(
    engine: AsyncEngine, fence: AsyncFence, relay: OutboxRelay, played: PlayedBroker
) -> None:
    await keep(engine, b"1")

    async def die(_: relaying._RelayedRows) -> int:
        raise asyncio.CancelledError

    relay._finish = die  # type: ignore[assignment,method-assign]
    with pytest.raises(asyncio.CancelledError):
        await relay.run_once()
    (lost,) = played.halves
    assert await fence.check(lost) is TransactionState.ROLLBACK  # type: ignore[arg-type]
    assert await new_relay(fence, played).relay_all(PATIENCE_S) == 1
    assert played.delivered() == [b"1"]


async def test_a_check_before_the_commit_leaves_the_row(
    engine: AsyncEngine, fence: AsyncFence, relay: OutboxRelay, played: PlayedBroker
) -> None:
    await keep(engine, b"1")
    store = played.store

    async def store_and_check(messages: Sequence[Message], born_at_us: int) -> Half:
        half = await store(messages, born_at_us)
        assert await fence.check(half.transaction_id) is TransactionState.ROLLBACK
        return half

    relay._store = store_and_check
    assert not await relay._step()
    assert (await count(engine), played.delivered()) == (1, [])
    relay._store = store
    assert await relay.run_once() == 1
    assert played.delivered() == [b"1"]


async def test_a_key_stops_at_its_first_failure_and_other_keys_continue(
    engine: AsyncEngine, relay: OutboxRelay, played: PlayedBroker
) -> None:
    for body, key in ((b"a1", "a"), (b"b1", "b"), (b"a2", "a"), (b"c", None)):
        await keep(engine, body, key=key)

    def refuse_first(message: Message) -> None:
        if message.body == b"a1":
            raise BrokerUnavailable("away")

    played.on_store = refuse_first
    assert await relay.run_once() == 2
    assert sorted(played.delivered()) == [b"b1", b"c"]
    played.on_store = lambda _: None
    assert await relay.run_once() == 2
    assert played.delivered()[-2:] == [b"a1", b"a2"]


async def test_a_refused_row_blocks_its_key_and_is_retried_on_request(
    engine: AsyncEngine, fence: AsyncFence, relay: OutboxRelay, played: PlayedBroker
) -> None:
    for body, key in ((b"a1", "a"), (b"a2", "a"), (b"b", "b")):
        await keep(engine, body, key=key)

    def refuse_first(message: Message) -> None:
        if message.body == b"a1":
            raise UnknownTopic("topic 'order' is unknown")

    played.on_store = refuse_first
    relay._refused_at = relay._loop.time()
    assert await relay.run_once() == 1
    assert await relay.run_once() == 0
    assert played.delivered() == [b"b"]
    (waiting,) = await fence._run(rows.waiting)
    assert (waiting.rows, waiting.refused) == (2, 1)
    assert [each.refused for each in await fence._run(rows.listed, None, 10)] == ["topic 'order' is unknown", None]
    played.on_store = lambda _: None
    assert await relay.relay_all(PATIENCE_S) == 2
    assert played.delivered() == [b"b", b"a1", b"a2"]


async def test_a_refused_row_is_not_retried_at_each_run(
    engine: AsyncEngine, relay: OutboxRelay, played: PlayedBroker
) -> None:
    tried: list[bytes] = []

    def refuse(message: Message) -> None:
        tried.append(message.body)
        raise UnknownTopic("topic 'order' is unknown")

    played.on_store = refuse
    for body in (b"1", b"2"):
        await keep(engine, body, key="k")
    assert [await relay.run_once() for _ in range(3)] == [0, 0, 0]
    assert tried == [b"1"]
    relay._refused_at -= relaying.REFUSED_INTERVAL_S
    assert await relay.run_once() == 0
    assert tried == [b"1", b"1"]


async def test_a_key_with_an_unavailable_broker_does_not_delay_other_keys(
    engine: AsyncEngine, fence: AsyncFence, relay: OutboxRelay, played: PlayedBroker
) -> None:
    for body, key in ((b"a1", "a"), (b"a2", "a"), (b"b", "b"), (b"c", None)):
        await keep(engine, body, key=key)
    store, left = played.store, asyncio.Event()

    async def store_or_hang(messages: Sequence[Message], born_at_us: int) -> Half:
        if messages[0].ordering_key == "a":
            try:
                await asyncio.Event().wait()
            finally:
                left.set()
        return await store(messages, born_at_us)

    relay._store, relay._page_s = store_or_hang, 0.05
    assert await relay.run_once() == 2
    assert sorted(played.delivered()) == [b"b", b"c"]
    assert left.is_set(), "nobody waits for it"
    relay._store = store
    assert await relay.run_once() == 2
    assert played.delivered()[-2:] == [b"a1", b"a2"]


async def test_a_hot_key_is_relayed_in_bounded_parts(
    engine: AsyncEngine, relay: OutboxRelay, played: PlayedBroker
) -> None:
    for n in range(6):
        await keep(engine, b"%d" % n, key="hot")
    store, is_enough = played.store, asyncio.Event()

    async def store_some(messages: Sequence[Message], born_at_us: int) -> Half:
        if len(played.halves) == 3 and not is_enough.is_set():
            await is_enough.wait()
        return await store(messages, born_at_us)

    relay._store, relay._page_s = store_some, 0.05
    assert await relay.run_once() == 3
    assert played.delivered() == [b"0", b"1", b"2"]
    is_enough.set()
    assert await relay.run_once() == 3
    assert played.delivered() == [b"%d" % n for n in range(6)]


async def test_a_half_decided_by_a_check_blocks_only_its_key(
    engine: AsyncEngine, fence: AsyncFence, relay: OutboxRelay, played: PlayedBroker
) -> None:
    for body, key in ((b"a1", "a"), (b"a2", "a"), (b"b", "b"), (b"c", None)):
        await keep(engine, body, key=key)
    store = played.store

    async def store_and_check(messages: Sequence[Message], born_at_us: int) -> Half:
        half = await store(messages, born_at_us)
        if messages[0].body == b"a1":
            assert await fence.check(half.transaction_id) is TransactionState.ROLLBACK
        return half

    relay._store = store_and_check
    assert await relay.run_once() == 2
    assert sorted(played.delivered()) == [b"b", b"c"]
    assert relay._page_s < relaying.PAGE_S, "the next halves are finished sooner"
    relay._store = store
    assert await relay.run_once() == 2
    assert played.delivered()[-2:] == [b"a1", b"a2"]


async def test_a_late_commit_is_relayed_before_a_refused_row_of_its_key(
    engine: AsyncEngine, relay: OutboxRelay, played: PlayedBroker
) -> None:
    late: dict[str, object] = {}
    for body in (b"1", b"bad", b"3"):
        await keep(engine, body, key="k")
        if not late:  # its number is used, and its transaction is still open
            async with engine.begin() as connection:
                late.update((await connection.execute(select(outbox_table))).mappings().one())
                await connection.execute(delete(outbox_table))
    played.on_store = lambda message: None if message.body != b"bad" else fail(UnknownTopic("no topic"))(message)
    assert await relay.run_once() == 0
    async with engine.begin() as connection:
        await connection.execute(insert(outbox_table).values(late))
    assert await relay.run_once() == 1  # although refused rows are not due for a retry yet
    assert played.delivered() == [b"1"]
    assert await count(engine) == 2


def test_rows_of_a_key_wait_for_earlier_rows() -> None:
    waiting = [(n, 1, key, n == 5) for n, key in enumerate([None, "a", "b", "a", "c", "a", None, "c"], start=1)]
    found = {
        (after, with_refused): [seq for seq, _ in rows.relayable(waiting, after, with_refused)]
        for after in (0, 2, 4)
        for with_refused in (False, True)
    }
    assert found == {
        (0, False): [1, 2, 3, 4, 6, 7],
        (0, True): [1, 2, 3, 4, 5, 6, 7, 8],
        (2, False): [3, 7],
        (2, True): [3, 5, 7, 8],
        (4, False): [7],
        (4, True): [5, 7, 8],
    }


def test_a_page_of_rows_is_read_by_an_index(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    create_tables(engine)
    with engine.connect() as connection:
        statement = rows._SELECT_WAITING.compile(dialect=sqlite.dialect(paramstyle="named"))
        values = {**statement.params, "group": GROUP, "rows": 1000}
        plan = [row[-1] for row in connection.execute(text(f"EXPLAIN QUERY PLAN {statement}"), values)]
    assert plan == ["SEARCH txmsg_outbox USING INDEX txmsg_outbox_seq (group_name=?)"], "all would be read and sorted"
    engine.dispose()


async def test_rows_waiting_for_a_refused_one_do_not_hide_later_rows(
    engine: AsyncEngine, fence: AsyncFence, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "ROWS_PER_PAGE", 2)
    for n in range(20):
        await keep(engine, b"%d" % n, key="k")
    await keep(engine, b"other")
    async with engine.begin() as connection:
        await connection.execute(update(outbox_table).where(outbox_table.c.seq == 1).values(refused="no topic"))
    assert [row.seq for row in await fence._run(rows.page, GROUP, 0, False)] == [21]


async def test_rows_behind_many_refused_ones_are_relayed_in_key_order(
    engine: AsyncEngine, relay: OutboxRelay, played: PlayedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "ROWS_PER_PAGE", 2)
    for body, key in ((b"a1", "a"), (b"bad", None), (b"bad", None), (b"a2", "a"), (b"b1", "b"), (b"b2", "b")):
        await keep(engine, body, key=key)

    def refuse(message: Message) -> None:
        if message.body in {b"a1", b"bad"}:
            raise UnknownTopic("topic 'order' is unknown")

    played.on_store = refuse
    assert await relay.relay_all(PATIENCE_S) == 2
    assert played.delivered() == [b"b1", b"b2"]
    played.on_store = lambda message: refuse(message) if message.body == b"bad" else None
    assert await relay.relay_all(PATIENCE_S) == 2
    assert played.delivered() == [b"b1", b"b2", b"a1", b"a2"]
    assert await count(engine) == 2


async def test_a_requested_run_relays_all_rows_while_another_relay_leads(
    engine: AsyncEngine, fence: AsyncFence, relay: OutboxRelay, played: PlayedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relaying, "PACE_S", 0.0)
    await keep(engine, b"1", key="k")
    await keep(engine, b"2", key="k")
    other, store = uuid4(), played.store
    assert await fence._run(rows.take_turn, GROUP, other)

    async def store_behind_another(messages: Sequence[Message], born_at_us: int) -> Half:
        half = await store(messages, born_at_us)
        if messages[0].body == b"1":
            assert not await fence._run(rows.take_turn, GROUP, other), "it stands back"
            await fence._run(rows.remove, [1])  # as a concurrent relay would
        return half

    relay._store = store_behind_another
    assert await relay.relay_all(PATIENCE_S) == 1
    assert (played.delivered(), await count(engine)) == ([b"2"], 0)
    assert await fence._run(rows.take_turn, GROUP, other), "the turn is left at once"


async def test_a_requested_run_says_why_nothing_was_relayed(
    engine: AsyncEngine, relay: OutboxRelay, played: PlayedBroker
) -> None:
    await keep(engine, b"1")
    played.on_store = fail(BrokerUnavailable("no broker answers at 127.0.0.1:1"))
    with pytest.raises(BrokerUnavailable, match=r"no broker answers at 127\.0\.0\.1:1"):
        await relay.relay_all(0.0)
    assert await count(engine) == 1


async def test_the_reason_for_waiting_rows_is_logged_once(
    engine: AsyncEngine, relay: OutboxRelay, played: PlayedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    await keep(engine, b"1")
    played.on_store = fail(BrokerUnavailable("no broker answers"))
    for _ in range(2):
        assert not await relay._step()
    told = [each for each in caplog.records if getattr(each, "txmsg", {}).get("event") == "outbox.not_relayed"]
    assert [each.getMessage() for each in told] == [
        f"about 1 transactions wait in the outbox of group {GROUP}: no broker answers"
    ]


async def test_a_damaged_row_is_recorded_and_others_are_relayed(
    engine: AsyncEngine, fence: AsyncFence, relay: OutboxRelay, played: PlayedBroker
) -> None:
    for _ in range(2):
        await keep(engine, b"1")
    for seq, damaged in ((1, ""), (2, "AAAA")):
        async with engine.begin() as connection:
            await connection.execute(update(outbox_table).where(outbox_table.c.seq == seq).values(messages=damaged))
    await keep(engine, b"whole")
    assert await relay.run_once() == 1
    assert played.delivered() == [b"whole"]
    refused = [each.refused for each in await fence._run(rows.listed, None, 10)]
    assert refused == ["0 characters of the outbox hold no message", "4 characters of the outbox are not messages"]


async def test_the_leading_relay_counts_and_others_read_its_figures(
    engine: AsyncEngine, fence: AsyncFence, relay: OutboxRelay, played: PlayedBroker
) -> None:
    played.on_store = fail(BrokerUnavailable("away"))
    for _ in range(3):
        await keep(engine, b"1")
    other = new_relay(fence, played)
    assert await relay.run_once() == 0
    counted: list[str] = []

    @event.listens_for(engine.sync_engine, "before_cursor_execute")
    def note(_c: object, _cursor: object, statement: str, *_: object) -> None:
        if "count(" in statement or "INSERT" in statement or "UPDATE" in statement:
            counted.append(statement)

    assert await other.run_once() == 0
    assert counted == []
    assert other._state.rows == 3


async def test_stopping_a_relay_does_not_wait_for_a_hanging_database(
    tmp_path: Path, played: PlayedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    create_tables(engine)
    relay = new_relay(AsyncFence(engine), played)
    relay._has_turn = True
    hangs = threading.Event()
    monkeypatch.setattr(rows, "leave_turn", lambda *_: hangs.wait())
    monkeypatch.setattr(relaying, "LEAVE_S", 0.01)
    returned = threading.Event()
    event.listen(engine, "checkin", lambda *_: returned.set())
    try:
        await relay._leave_turn()
    finally:
        hangs.set()
        # A connection returned by its thread later would not be closed.
        assert await asyncio.to_thread(returned.wait, 30)
        engine.dispose()


async def test_halves_are_rolled_back_when_the_relay_stops_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entries: asyncio.Queue[FreshEntry] = asyncio.Queue()
    told: asyncio.Queue[tuple[bytes, TransactionState]] = asyncio.Queue()
    async with AsyncProducer("127.0.0.1:1", group=GROUP) as producer:
        monkeypatch.setattr(producer._sender_started.halves, "offer", entries.put_nowait)
        monkeypatch.setattr(producer, "_tell_soon", lambda half, state: told.put_nowait((half.id_bytes, state)))
        storing = asyncio.create_task(producer._half_of_kept([Message("order", b"")], 1))
        entry = await entries.get()
        storing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await storing
        assert entry.abandoned(), "not sent, if it was not"
        entry.succeed(b"shard")
        assert await told.get() == (entry.transaction_id, TransactionState.ROLLBACK)


async def test_rows_of_another_group_are_not_relayed(
    engine: AsyncEngine, relay: OutboxRelay, played: PlayedBroker
) -> None:
    await keep(engine, b"1", group="other")
    assert await relay.run_once() == 0
    assert (played.halves, await count(engine)) == ({}, 1)


async def test_only_one_process_relays_at_a_time(fence: AsyncFence) -> None:
    one, other = uuid4(), uuid4()
    assert await fence._run(rows.take_turn, GROUP, one)
    assert await fence._run(rows.take_turn, GROUP, one)
    assert not await fence._run(rows.take_turn, GROUP, other)
    await fence._run(rows.leave_turn, GROUP, one)
    assert await fence._run(rows.take_turn, GROUP, other)


async def test_each_step_reads_a_few_megabytes_at_most(engine: AsyncEngine, fence: AsyncFence) -> None:
    for _ in range(4):
        await keep(engine, bytes(2_600_000))
    assert len(await fence._run(rows.page, GROUP, 0, False)) == 2


def test_a_row_above_the_packet_limit_of_mysql_is_refused_before_the_insert() -> None:
    rows.check_packet(16 * 1024 * 1024, 15 * 1024 * 1024)
    with pytest.raises(MessageTooLarge, match=r"take 44739244 bytes .* packets of 16777216 bytes: raise its max"):
        rows.check_packet(16 * 1024 * 1024, 44_739_244)


# ---- around a call


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[sessionmaker[Session]]:
    engine = create_engine(f"sqlite:///{tmp_path / 'business.db'}")
    create_tables(engine)
    yield sessionmaker(engine)
    engine.dispose()


def test_without_a_broker_the_transaction_commits_and_messages_go_to_the_outbox(shop: sessionmaker[Session]) -> None:
    engine = shop.kw["bind"]
    with Producer("127.0.0.1:1", group=GROUP, check_listener=FenceCheckListener(engine)) as producer:

        @transactional_message(producer, topic="order", session=shop, when_away=Outbox(wait_s=0.05, rows_max=3))
        def place(session: Session, number: int) -> int:
            if number < 0:
                raise ValueError("negative")
            return number

        assert [place(number) for number in range(2)] == [0, 1]
        with pytest.raises(ValueError, match="negative"):
            place(-1)
        assert place(2) == 2
        with pytest.raises(BrokerUnavailable, match="3 transactions wait in the outbox of producer group shop"):
            place(3)
    with engine.connect() as connection:
        kept = rows.listed(connection, GROUP, 10)
        assert [unpacked(each.messages, 0)[0][0].body for each in kept] == [b'{"number":%d}' % n for n in range(3)]
        fenced = set(connection.scalars(select(fence_table.c.transaction_id).where(fence_table.c.outcome == "commit")))
        assert {each.transaction_id for each in kept} == fenced
    engine.dispose()


def test_a_keyed_call_looks_for_outbox_rows_of_its_key_before_sending(shop: sessionmaker[Session]) -> None:
    engine = shop.kw["bind"]
    looked: list[str] = []

    @event.listens_for(engine, "before_cursor_execute")
    def note(_c: object, _cursor: object, statement: str, *_: object) -> None:
        if "txmsg_outbox.ordering_key = " in statement:
            looked.append(statement)

    with Producer("127.0.0.1:1", group=GROUP, check_listener=FenceCheckListener(engine)) as producer:

        @transactional_message(
            producer, topic="order", ordering_key="number", session=shop, when_away=Outbox(wait_s=0.05)
        )
        def place(session: Session, number: int) -> None: ...

        place(1)
    assert looked
    engine.dispose()


def test_two_ordering_keys_in_one_call_are_refused(shop: sessionmaker[Session]) -> None:
    engine = shop.kw["bind"]
    producer = Producer("127.0.0.1:1", group=GROUP, check_listener=FenceCheckListener(engine))

    def two(number: int) -> list[Message]:
        return [Message("order", b"", ordering_key=key) for key in ("a", "b")]

    @transactional_message(producer, session=shop, message=two, when_away="outbox")
    def place(session: Session, number: int) -> None: ...

    with pytest.raises(InvalidMessage, match="have the ordering keys 'a', 'b': with when_away="):
        place(1)
    engine.dispose()


def test_an_outbox_needs_a_session_and_a_valid_mode(shop: sessionmaker[Session]) -> None:
    class Own:
        def check(self, message: object) -> TransactionState:
            return TransactionState.UNKNOWN

    producer = Producer(group=GROUP, check_listener=Own())

    def place(number: int) -> None: ...

    def place_in(session: Session, number: int) -> None: ...

    with pytest.raises(MisuseError, match="has when_away= and no session="):
        transactional_message(producer, topic="order", when_away="outbox")(place)  # type: ignore[call-overload]
    with pytest.raises(MisuseError, match="needs a fence"):
        transactional_message(producer, topic="order", session=shop, when_away="outbox")(place_in)
    with pytest.raises(MisuseError, match=r"when_away='box' of .*: give \"raise\", \"outbox\""):
        transactional_message(producer, topic="order", session=shop, when_away="box")(place_in)  # type: ignore[call-overload]
    with pytest.raises(MisuseError, match=r"rows_max=0 .* is not an integer of at least 1"):
        Outbox(rows_max=0)


def test_while_brokers_are_away_one_call_per_second_tries_them() -> None:
    gate = CircuitBreaker()
    assert gate.may_try(0.0)
    assert gate.note_away(0.0)
    assert not gate.may_try(PROBE_INTERVAL_S / 2)
    assert gate.may_try(PROBE_INTERVAL_S)
    assert not gate.may_try(PROBE_INTERVAL_S)
    assert not gate.note_away(PROBE_INTERVAL_S)
    gate.note_answer()
    assert gate.may_try(PROBE_INTERVAL_S)


async def test_a_half_that_timed_out_is_not_sent_or_is_rolled_back() -> None:
    waiter = asyncio.get_running_loop().create_future()
    entry = FreshEntry(new_transaction_id().bytes, [Message("order", b"")], waiter)
    told: list[bytes] = []
    entry.go_on_without(told.append)
    assert entry.abandoned(), "not sent, if it was not"
    entry.succeed(b"shard")
    assert told == [b"shard"]


# ---- commands


async def test_an_operator_lists_and_deletes_waiting_rows(engine: AsyncEngine, fence: AsyncFence) -> None:
    await keep(engine, b"1", key="k/1")
    await keep(engine, b"2")
    await fence._run(rows.note_refused, [(2, "topic 'order' is unknown")])

    def call(*arguments: str) -> str:
        done = CliRunner().invoke(outbox, [*arguments, "--database", str(engine.url)])
        assert done.exit_code == 0, done.output
        return str(done.output)

    listed = json.loads(await asyncio.to_thread(call, "list", "--json"))
    assert [(each["seq"], each["ordering_key"], each["refused"]) for each in listed["rows"]] == [
        (1, "k/1", None),
        (2, None, "topic 'order' is unknown"),
    ]
    assert [(each["group"], each["rows"], each["refused"]) for each in listed["waiting"]] == [(GROUP, 2, 1)]
    assert "group shop: 2 transactions of " in await asyncio.to_thread(call, "list")
    assert await asyncio.to_thread(call, "delete", "2", "--yes") == "rows deleted: 1\n"
    assert await count(engine) == 1
    async with engine.begin() as connection:
        await connection.execute(update(outbox_table).values(messages="damaged"))
    await keep(engine, b"3")
    listed = json.loads(await asyncio.to_thread(call, "list", "--json"))
    assert [(each["messages"], each["refused"]) for each in listed["rows"]] == [
        (0, "damaged: 7 characters of the outbox are not messages"),
        (1, None),
    ]
    assert await asyncio.to_thread(call, "delete", "--all", "--yes") == "rows deleted: 2\n"
    for wrong in (["delete"], ["delete", "3", "--all"]):
        done = CliRunner().invoke(outbox, [*wrong, "--yes", "--database", str(engine.url)])
        assert done.exit_code == 2
        assert "give the numbers of rows, as `txmsg outbox list` shows them, or --all" in done.output
