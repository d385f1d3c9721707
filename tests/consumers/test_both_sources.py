"""Guarantees of subscriptions from both sources: the table of docs/decisions/0049, executed."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session, sessionmaker

from tests.business import business_database
from tests.consumers.processed import note_process
from tests.consumers.sources import GROUP, SourceUnderTest, acknowledged_by, figures_of, of_kind
from tests.effects import Effect, effects
from tests.waiting import until_async
from txmsg import idempotent
from txmsg.client.app import Depends
from txmsg.consumer.failures import Reject, Retry, Skip
from txmsg.message import ReceivedMessage
from txmsg.message.encryption import AesGcm
from txmsg.message.typed.topic import Topic

KINDS = pytest.mark.parametrize("kind", ["def", "async def"])
WAIT_S = 60.0


def bodies(row: int, count: int) -> list[bytes]:
    return [f"{row}/{n}".encode() for n in range(count)]


# ---- order


@KINDS
async def test_messages_of_an_ordered_queue_are_handled_one_at_a_time_in_order(
    place: SourceUnderTest, kind: str
) -> None:
    seen: dict[str, list[bytes]] = defaultdict(list)
    running: set[str] = set()
    app = place.app()

    def begin(message: ReceivedMessage) -> str:
        row = message.body.decode().partition("/")[0]
        assert row not in running
        running.add(row)
        seen[row].append(message.body)
        return row

    def handle(message: ReceivedMessage) -> None:
        running.remove(begin(message))

    async def handle_async(message: ReceivedMessage) -> None:
        row = begin(message)
        await asyncio.sleep(0)
        running.remove(row)

    app.subscribe("t", source=place.source)(handle if kind == "def" else handle_async)
    for row in range(3):
        place.send(*bodies(row, 30), row=row)
    async with app:
        await until_async(lambda: acknowledged_by(app) == 90)
    assert seen == {str(row): bodies(row, 30) for row in range(3)}


async def test_concurrency_limits_parallel_handlers_of_a_subscription(place: SourceUnderTest) -> None:
    running: dict[str, int] = defaultdict(int)
    most: dict[str, int] = defaultdict(int)
    both = asyncio.Event()
    app = place.app()

    async def handle(message: ReceivedMessage) -> None:
        topic = message.topic
        running[topic] += 1
        most[topic] = max(most[topic], running[topic])
        if running == {"t": 2, "other": 1}:
            both.set()
        await asyncio.wait_for(both.wait(), WAIT_S)
        await asyncio.sleep(0)
        running[topic] -= 1

    app.subscribe("t", concurrency=2, source=place.source)(handle)
    app.subscribe("other", concurrency=1, source=place.source)(handle)
    for row in range(4):
        place.send(*bodies(row, 5), row=row)
        place.send(*bodies(row, 5), row=row, topic="other")
    async with app:
        await until_async(lambda: acknowledged_by(app) == 40)
    assert most == {"t": 2, "other": 1}


# ---- fetched ahead


async def test_prefetch_is_bounded_while_handlers_are_blocked(place: SourceUnderTest) -> None:
    app, go = place.app(), asyncio.Event()
    running: list[bytes] = []
    passed: list[bytes] = []

    @app.subscribe("t", concurrency=2, source=place.source)
    async def stand_still(message: ReceivedMessage) -> None:
        running.append(message.body)
        await go.wait()

    app.subscribe("other", source=place.source)(of_kind("def", lambda message: passed.append(message.body)))
    for _ in range(40):
        place.send(*(os.urandom(20_000) for _ in range(10)), row=None)
    async with app:
        await until_async(lambda: running and place.share_ahead(app) >= 0.5)
        place.send(b"x", topic="other")  # by the time that this is handled, more could have been fetched
        await until_async(lambda: passed)
        assert place.share_ahead(app) <= 1
        go.set()
        await until_async(lambda: acknowledged_by(app) == 401)
    assert len(set(running)) == len(running) == 400


# ---- settled


@pytest.mark.parametrize("batch", [None, 10])
async def test_unfinished_messages_are_redelivered_at_the_next_start(place: SourceUnderTest, batch: int | None) -> None:
    app = place.app(close_timeout_s=0)
    begun, is_first = asyncio.Event(), True
    seen: list[bytes] = []

    async def handle_list(messages: list[ReceivedMessage]) -> None:
        if is_first:
            begun.set()
            await asyncio.Event().wait()
        seen.extend(message.body for message in messages)

    async def handle(message: ReceivedMessage) -> None:
        await handle_list([message])

    app.subscribe("t", concurrency=1, batch=batch, source=place.source)(handle_list if batch else handle)
    place.send(*bodies(0, 10))
    async with app:
        await asyncio.wait_for(begun.wait(), WAIT_S)
        assert acknowledged_by(app) == 0
    is_first = False
    async with app:
        await until_async(lambda: acknowledged_by(app) == 10)
    assert seen == bodies(0, 10)


async def test_messages_handled_before_a_stop_are_not_redelivered(place: SourceUnderTest) -> None:
    app = place.app()
    seen: list[bytes] = []
    app.subscribe("t", source=place.source)(of_kind("def", lambda message: seen.append(message.body)))
    for sent in (bodies(0, 5), bodies(1, 5)):
        place.send(*sent)
        async with app:
            await until_async(lambda: len(seen) % 5 == 0 and acknowledged_by(app) == 5)
    assert seen == [*bodies(0, 5), *bodies(1, 5)]


@KINDS
async def test_failing_message_is_retried_by_policy_and_then_becomes_a_dead_letter(
    place: SourceUnderTest, kind: str
) -> None:
    app = place.app()
    seen: list[tuple[bytes, int]] = []

    def handle(message: ReceivedMessage) -> None:
        seen.append((message.body, message.attempt))
        match message.body:
            case b"rejected":
                raise KeyError("rejected")
            case b"skipped":
                raise Skip
            case b"failing":
                raise ValueError("not yet")
            case _:
                pass

    policy = Retry(delays_s=[0.01], retries_max=2, by_type={KeyError: Reject})
    app.subscribe("t", retry=policy, source=place.source)(of_kind(kind, handle))
    for row, body in enumerate([b"rejected", b"skipped", b"failing", b"fine"]):
        place.send(body, row=row)
    async with app:
        await until_async(lambda: acknowledged_by(app) == 2 and sorted(place.dead()) == [b"failing", b"rejected"])
    once = [(b"fine", 1), (b"rejected", 1), (b"skipped", 1)]
    assert sorted(seen) == sorted([*once, *((b"failing", attempt) for attempt in (1, 2, 3))])


async def test_retry_is_handled_by_the_handler_of_its_topic(place: SourceUnderTest) -> None:
    app = place.app()
    seen: dict[str, list[int]] = {"t": [], "other": []}

    def handle(message: ReceivedMessage) -> None:
        seen[message.topic].append(message.attempt)
        if message.attempt == 1:
            raise ValueError("not yet")

    for topic in seen:
        app.subscribe(topic, retry=Retry(delays_s=[0.01]), source=place.source)(of_kind("def", handle))
        place.send(b"x", topic=topic)
    async with app:
        await until_async(lambda: acknowledged_by(app) == 2)
    assert seen == {"t": [1, 2], "other": [1, 2]}
    assert place.dead() == []


async def test_each_message_of_a_list_has_its_own_result(place: SourceUnderTest) -> None:
    app = place.app()
    lists: list[list[tuple[bytes, int]]] = []

    @app.subscribe("t", batch=4, concurrency=1, retry=Retry(delays_s=[0.01]), source=place.source)
    async def handle(messages: list[ReceivedMessage]) -> list[Exception | None]:
        lists.append([(message.body, message.attempt) for message in messages])
        fails = [message.body == b"0/1" and message.attempt == 1 for message in messages]
        return [ValueError("not yet") if failed else None for failed in fails]

    for row in range(4):
        place.send(*bodies(row, 4), row=row)
    async with app:
        await until_async(lambda: acknowledged_by(app) == 16)
    handled = sorted(each for given in lists for each in given)
    assert handled == sorted([*((body, 1) for row in range(4) for body in bodies(row, 4)), (b"0/1", 2)])
    assert max(len(given) for given in lists) <= 4


# ---- a stop


@KINDS
async def test_stop_waits_for_running_handlers(place: SourceUnderTest, kind: str) -> None:
    app = place.app(close_timeout_s=WAIT_S)
    begun, go = threading.Event(), threading.Event()
    seen: list[bytes] = []

    def wait(message: ReceivedMessage) -> None:
        begun.set()
        assert go.wait(WAIT_S)
        seen.append(message.body)

    async def wait_async(message: ReceivedMessage) -> None:
        await asyncio.to_thread(wait, message)

    app.subscribe("t", concurrency=1, source=place.source)(wait if kind == "def" else wait_async)
    place.send(*bodies(0, 2))
    await app.start()
    await until_async(begun.is_set)
    closing = asyncio.create_task(app.close())
    await asyncio.sleep(0)
    assert not closing.done()
    go.set()
    await closing
    first = list(seen)
    assert first in (bodies(0, 1), bodies(0, 2))
    async with app:
        await until_async(lambda: acknowledged_by(app) == 2 - len(first))
    assert seen == bodies(0, 2), "none is handled twice, none is left out"


async def test_stop_cancels_coroutines_after_its_timeout_and_leaves_threads_alone(place: SourceUnderTest) -> None:
    app = place.app(close_timeout_s=0.01)
    go, begun = threading.Event(), set[str]()
    ended: list[str] = []

    async def handle(message: ReceivedMessage) -> None:
        begun.add("coroutine")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    def handle_on_thread(message: ReceivedMessage) -> None:
        begun.add("thread")
        assert go.wait(WAIT_S)
        ended.append("thread")

    app.subscribe("t", source=place.source)(handle)
    app.subscribe("other", source=place.source)(handle_on_thread)
    place.send(b"x")
    place.send(b"x", topic="other")
    async with app:
        await until_async(lambda: len(begun) == 2)
    assert ended == ["cancelled"]
    go.set()
    await until_async(lambda: ended == ["cancelled", "thread"])


async def test_message_is_redelivered_if_its_handler_cancels_its_own_task(place: SourceUnderTest) -> None:
    app = place.app()
    seen: list[bytes] = []

    @app.subscribe("t", concurrency=1, source=place.source)
    async def handle(message: ReceivedMessage) -> None:
        seen.append(message.body)
        if len(seen) == 1:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)

    place.send(b"first")
    place.send(b"second", row=1)
    async with app:
        await until_async(lambda: acknowledged_by(app) == 2)
    assert sorted(seen[1:]) == [b"first", b"second"]
    assert seen[0] in seen[1:]


async def test_paused_group_gets_no_messages_until_it_is_resumed(place: SourceUnderTest) -> None:
    app = place.app()
    seen: list[bytes] = []
    app.subscribe("t", source=place.source)(of_kind("async def", lambda message: seen.append(message.body)))
    app.subscribe("t", group="other", source=place.source)(of_kind("async def", lambda message: None))
    async with app:
        place.send(b"before")
        await until_async(lambda: acknowledged_by(app) == 2)
        app.pause(GROUP)
        place.send(b"while", row=1)
        await until_async(lambda: acknowledged_by(app) == 3)
        assert seen == [b"before"]
        app.resume(GROUP)
        await until_async(lambda: acknowledged_by(app) == 4)
    assert seen == [b"before", b"while"]


async def test_handler_calls_are_counted_by_topic(place: SourceUnderTest) -> None:
    app = place.app()
    begun, go = asyncio.Event(), asyncio.Event()

    @app.subscribe("t", retry=Retry(delays_s=[0.01]), source=place.source)
    async def handle(message: ReceivedMessage) -> None:
        if message.attempt == 1:
            raise ValueError("not yet")
        begun.set()
        await go.wait()

    place.send(b"x")
    async with app:
        await asyncio.wait_for(begun.wait(), WAIT_S)
        figures = figures_of(app)
        assert figures["txmsg_handlers_running"] == {(GROUP, "t"): 1}
        assert figures["txmsg_handler_failures_total"] == {(GROUP, "t", "ValueError"): 1}
        go.set()
        await until_async(lambda: acknowledged_by(app) == 1)
    assert figures_of(app)["txmsg_handlers_running"] == {(GROUP, "t"): 0}


# ---- arguments of handlers


@contextmanager
def opened() -> Iterator[str]:
    yield "session"


def session() -> Iterator[str]:
    with opened() as value:
        yield value


async def test_fields_dependencies_middleware_and_rate_work_for_both_sources(place: SourceUnderTest) -> None:
    app = place.app()
    seen: list[Any] = []

    @app.middleware
    @contextmanager
    def around(message: ReceivedMessage) -> Iterator[None]:
        seen.append("in")
        yield
        seen.append("out")

    @app.subscribe("t", rate=1000.0, concurrency=1, source=place.source)
    def mail(order_id: int, given: Annotated[str, Depends(session)], note: str = "none") -> None:
        seen.append((order_id, given, note))

    place.send(json.dumps({"order_id": 1}).encode(), b'{"order_id": "no number"}')
    async with app:
        await until_async(lambda: acknowledged_by(app) == 1 and place.dead() == [b'{"order_id": "no number"}'])
    assert seen == ["in", (1, "session", "none"), "out"]


async def test_bodies_are_decrypted_for_handlers(place: SourceUnderTest) -> None:
    encryption = AesGcm({"1": bytes(16)}, current="1")
    app = place.app(encryption=encryption)
    seen: list[bytes] = []
    app.subscribe("t", source=place.source)(of_kind("def", lambda message: seen.append(message.body)))
    place.send(b"secret", encryption=encryption)
    async with app:
        await until_async(lambda: acknowledged_by(app) == 1)
    assert seen == [b"secret"]


async def test_handler_can_run_in_its_own_process(place: SourceUnderTest, tmp_path: Path) -> None:
    app = place.app()
    app.subscribe("t", runs_in="processes", concurrency=1, source=place.source)(note_process)
    place.send(str(tmp_path / "pid").encode())
    async with app:
        await until_async(lambda: acknowledged_by(app) == 1)
    assert int((tmp_path / "pid").read_text()) != os.getpid()


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    with business_database(f"sqlite:///{tmp_path}/business.db", Effect.metadata) as engine:
        yield engine


async def test_every_broadcasting_member_applies_each_message_once(place: SourceUnderTest, engine: Engine) -> None:
    apps = [place.app() for _ in range(2)]
    for number, app in enumerate(apps):

        @app.subscribe("t", broadcast=f"host-{number}", source=place.source)
        @idempotent(sessionmaker(engine))
        def handle(session: Session, message: ReceivedMessage, number: int = number) -> None:
            session.add(Effect(message_id=f"{message.body.decode()} at {number}"))

    async with apps[0], apps[1]:
        await until_async(lambda: _sees_new(place, apps))
        place.send(b"last")
        await until_async(lambda: effects(engine).keys() >= {"last at 0", "last at 1"})
    counts = effects(engine)
    assert (counts["last at 0"], counts["last at 1"]) == (1, 1)


def _sees_new(place: SourceUnderTest, apps: list[Any]) -> bool:
    """Return True if all have got a message; else send another: a broadcasting group begins at the end."""
    if all(acknowledged_by(app) for app in apps):
        return True
    place.send(b"x")
    return False


# ---- several topics


async def test_all_topics_of_a_subscription_share_its_concurrency(place: SourceUnderTest) -> None:
    app = place.app()
    running: list[str] = []
    most: list[int] = []
    full = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        running.append(message.topic)
        most.append(len(running))
        if len(running) == 2:
            full.set()
        await full.wait()
        await asyncio.sleep(0)
        running.remove(message.topic)

    app.subscribe("t", "u", "v", source=place.source, concurrency=2)(handle)
    for topic in ("t", "u", "v"):
        for row in range(3):
            place.send(*bodies(row, 2), row=row, topic=topic)
    async with app:
        await until_async(lambda: acknowledged_by(app) == 18)
    assert max(most) == 2
    assert {topic for _, topic in figures_of(app)["txmsg_handler_seconds"]} == {"t", "u", "v"}


async def test_batch_with_messages_of_several_topics_is_handled(place: SourceUnderTest) -> None:
    app = place.app()
    seen: list[tuple[str, bytes]] = []
    lists: list[tuple[int, int]] = []

    @app.subscribe("t", "u", source=place.source, batch=5, concurrency=2)
    def handle(messages: list[ReceivedMessage]) -> None:
        lists.append((len(messages), len({each.topic for each in messages})))
        seen.extend((each.topic, each.body) for each in messages)

    for topic in ("t", "u"):
        place.send(*bodies(0, 12), topic=topic)
    async with app:
        await until_async(lambda: acknowledged_by(app) == 24)
    assert sorted(seen) == sorted((topic, body) for topic in ("t", "u") for body in bodies(0, 12))
    assert max(count for count, _ in lists) <= 5
    if place.source == "log":
        assert {topics for _, topics in lists} == {1}, "a list is of one queue"


async def test_body_of_the_wrong_type_becomes_a_dead_letter_at_once(place: SourceUnderTest) -> None:
    app = place.app()
    seen: list[Opened | Closed] = []

    @app.subscribe(OPENED, CLOSED, source=place.source)
    def handle(event: Opened | Closed) -> None:
        seen.append(event)

    place.send(b'{"account": 1}', topic="opened")
    place.send(b'{"account": 2}', b'{"account": 3, "why": "x"}', topic="closed")
    async with app:
        await until_async(lambda: acknowledged_by(app) == 2 and place.dead())
    assert sorted(seen, key=lambda each: each.account) == [Opened(1), Closed(3, "x")]
    assert place.dead() == [b'{"account": 2}']


@dataclass
class Opened:
    account: int


@dataclass
class Closed:
    account: int
    why: str


OPENED, CLOSED = Topic("opened", Opened), Topic("closed", Closed)
