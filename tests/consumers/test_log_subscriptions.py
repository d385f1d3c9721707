"""Features of log subscriptions only: options, batches of one queue, one member for all topics of a group."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.consumers.sources import GROUP, LogSource, acknowledged_by, of_kind
from tests.metaq.servers import served
from tests.waiting import until_async
from txmsg.client.app import Router, Txmsg
from txmsg.consumer.failures import Reject, Retry
from txmsg.errors import CorruptLog, MisuseError, TxmsgError
from txmsg.message import Message, ReceivedMessage
from txmsg.metaq import LogProducer, open_log
from txmsg.metaq.consumer.push_consumer import AsyncPushConsumer
from txmsg.metaq.interface import LogQueue
from txmsg.metaq.server.server_config import MetaQConfig
from txmsg.testing import handle as handle_message
from txmsg.wire.start import Start

WAIT_S = 60.0


def one(message: ReceivedMessage) -> None: ...
def several(messages: list[ReceivedMessage]) -> None: ...


# ---- declared


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"source": "kafka"}, "source='kafka' of topic 't': give \"brokers\" or \"log\""),
        ({"source": "log", "missing": "never"}, "missing='never' is not 'error'"),
        ({"source": "log", "strategy": lambda: {}}, "is called as"),
        ({"source": "log", "zone": "no zone"}, "zone"),
        ({"source": "log", "ordered": 3}, "ordered=3 is not True or False"),
        ({"source": "log", "ordered": True, "batch": 3}, "ordered= of topic 't' with batch="),
        ({"source": "log", "broadcast": "a%b"}, "broadcast='a%b'"),
        ({"source": "log", "start": Start.offset(3)}, "offset"),
        ({"source": "log", "retry": Retry(retries_max=17)}, "retries_max=17: a group of a log has up to 16 retries"),
        ({"source": "log", "retry": Retry(delays_s=[7201])}, "has a delay of 7201 s"),
        ({"source": "log", "retry": Retry(by_type={OSError: Retry(retries_max=20)})}, "retries_max=20"),
        ({"ordered": True}, 'read the log with source="log"'),
        ({"missing": "latest"}, 'read the log with source="log"'),
        ({"source": "log", "visibility_timeout_s": 3.0}, "visibility_timeout_s"),
    ],
)
def test_option_unsupported_by_the_source_is_refused_at_declaration(options: dict[str, Any], said: str) -> None:
    with pytest.raises((TxmsgError, TypeError), match=re.escape(said)):
        Txmsg(group="g").subscribe("t", **options)


@pytest.mark.parametrize(
    "differing", [{"start": Start.latest()}, {"broadcast": "host-1"}, {"zone": "south"}, {"ordered": True}]
)
def test_all_topics_of_a_log_group_share_its_options(differing: dict[str, Any]) -> None:
    app = Txmsg(group="g")
    app.subscribe("a", source="log")(one)
    app.subscribe("b", group="other", source="log", **differing)(one)
    assert len(app.subscriptions) == 2
    router = Router()
    router.subscribe("c", source="log", **differing)(one)
    app.include(router)
    with pytest.raises(MisuseError, match="group g reads topics 'a' and 'c' of the log, which share one start="):
        assert app.subscriptions


async def test_application_without_a_log_gets_an_error_that_explains_how_to_name_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TXMSG_LOG", raising=False)
    app = Txmsg(group="g")
    app.subscribe("t", source="log")(one)
    with pytest.raises(MisuseError, match=r"topic 't' in group g has source=\"log\".*Txmsg\(\.\.\., log=.*TXMSG_LOG"):
        await app.start()


def test_invalid_log_argument_is_refused() -> None:
    with pytest.raises(MisuseError, match="log=3 is not a log"):
        Txmsg(log=3)  # type: ignore[arg-type]


async def test_log_can_be_named_by_the_environment_or_passed_open(
    log_place: LogSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TXMSG_LOG", str(log_place.root))
    log_place.send(b"x", b"y")
    with open_log(log_place.root) as access:
        for number, log in enumerate([None, str(log_place.root), access]):
            app = Txmsg(log=log)
            app.subscribe("t", group=f"g{number}", source="log")(one)
            async with app:
                await until_async(lambda: acknowledged_by(app) == 2)  # noqa: B023
        assert access.topics() == {"t": [0]}, "an open log is left open"


async def test_log_can_be_served_by_a_metaq_server(tmp_path: Path) -> None:
    config = MetaQConfig(data_dir=tmp_path / "log", listen="127.0.0.1:0")
    with served(config) as address, open_log(address) as log:
        LogProducer(log).send_many([Message("t", b"x")] * 3)
        app = Txmsg(log=address, group="g")
        app.subscribe("t", source="log")(one)
        async with app:
            await until_async(lambda: acknowledged_by(app) == 3)


def test_asyncapi_says_which_subscriptions_read_the_log() -> None:
    app = Txmsg(group="g")
    app.subscribe("t", source="log")(one)
    app.subscribe("u")(one)
    operations = app.asyncapi(title="a", version="1")["operations"]
    titles = [operations[name]["title"] for name in ("receive.t.g", "receive.u.g")]
    assert titles == ["consumer group g of the log", "consumer group g"]


def test_handlers_of_a_log_can_be_tested_without_a_log() -> None:
    app, seen = Txmsg(group="g"), []

    @app.subscribe("t", batch=2, source="log")
    def handle(messages: list[ReceivedMessage]) -> None:
        seen.append([message.body for message in messages])
        if messages[0].body == b"2":
            raise Reject("no")

    handle_message(app, Message("t", b"0"), Message("t", b"1"))
    with pytest.raises(Reject):
        handle_message(app, Message("t", b"2"))
    assert seen == [[b"0", b"1"], [b"2"]]


# ---- running


@pytest.mark.parametrize("ordered", [False, True])
async def test_queue_continues_after_a_failure_unless_it_is_ordered(log_place: LogSource, ordered: bool) -> None:
    app = log_place.app()
    seen: list[tuple[bytes, int]] = []

    def handle(message: ReceivedMessage) -> None:
        seen.append((message.body, message.attempt))
        if message.body == b"1" and message.attempt == 1:
            raise ValueError("not yet")

    app.subscribe("t", source="log", ordered=ordered, retry=Retry(delays_s=[0.01]))(of_kind("def", handle))
    log_place.send(b"0", b"1", b"2")
    async with app:
        await until_async(lambda: acknowledged_by(app) == 3)
    later = [(b"1", 2), (b"2", 1)] if ordered else [(b"2", 1), (b"1", 2)]
    assert seen == [(b"0", 1), (b"1", 1), *later]


@pytest.mark.parametrize("kind", ["def", "async def"])
async def test_batches_of_a_queue_are_in_order_and_handled_one_at_a_time(log_place: LogSource, kind: str) -> None:
    app = log_place.app()
    lists: list[list[int]] = []
    seen: dict[int | None, list[int]] = defaultdict(list)
    running: set[int | None] = set()

    def begin(messages: list[ReceivedMessage]) -> int | None:
        [queue] = {message.queue for message in messages}
        assert queue not in running
        running.add(queue)
        lists.append([message.offset or 0 for message in messages])
        seen[queue] += lists[-1]
        return queue

    def handle(messages: list[ReceivedMessage]) -> None:
        running.remove(begin(messages))

    async def handle_async(messages: list[ReceivedMessage]) -> None:
        queue = begin(messages)
        await asyncio.sleep(0)
        running.remove(queue)

    app.subscribe("t", source="log", batch=200, concurrency=2)(handle if kind == "def" else handle_async)
    for row in range(3):
        log_place.send(*(b"x" for _ in range(450)), row=row)
    async with app:
        await until_async(lambda: acknowledged_by(app) == 3 * 450)
    assert seen == {queue: list(range(450)) for queue in range(3)}
    assert max(map(len, lists)) == 200


async def test_batches_are_full_while_their_queue_has_more_messages(log_place: LogSource) -> None:
    app = log_place.app()
    lists: list[int] = []

    @app.subscribe("t", source="log", batch=100)
    async def handle(messages: list[ReceivedMessage]) -> None:
        lists.append(len(messages))

    log_place.send(*(b"x" for _ in range(450)))
    async with app:
        await until_async(lambda: acknowledged_by(app) == 450)
    assert lists == [100, 100, 100, 100, 50]


async def test_stored_offset_stays_before_a_cancelled_batch(log_place: LogSource) -> None:
    app = log_place.app()
    begun: list[int] = []

    @app.subscribe("t", source="log", batch=3)
    async def handle(messages: list[ReceivedMessage]) -> None:
        begun.append(len(messages))
        if len(begun) == 2:
            await asyncio.Event().wait()

    log_place.send(*(b"x" for _ in range(5)))
    app.close_timeout_s = 0
    async with app:
        await until_async(lambda: len(begun) == 2)
    with open_log(log_place.root) as access:
        [state] = [each for each in access.group(GROUP).queues if each.queue == LogQueue("t", 0)]
    assert (begun, state.offset) == ([3, 2], 3)


@pytest.mark.parametrize("what", ["pause", "close"])
async def test_batches_waiting_for_their_turn_do_not_start_after_pause_or_close(
    log_place: LogSource, what: str
) -> None:
    app, go = log_place.app(), asyncio.Event()
    lists: list[int | None] = []

    @app.subscribe("t", source="log", batch=2, concurrency=1)
    async def handle(messages: list[ReceivedMessage]) -> None:
        lists.append(messages[0].queue)
        await go.wait()

    for row in range(4):
        log_place.send(b"x", b"y", row=row)
    async with app:
        [receiver] = app._receivers
        consumer = receiver.consumer
        assert isinstance(consumer, AsyncPushConsumer)
        await until_async(lambda: len(consumer._balance.lanes) == 4)
        lanes = list(consumer._balance.lanes.values())
        await until_async(lambda: all(lane.chunk for lane in lanes) and lists)
        if what == "close":
            closing = asyncio.create_task(app.close())
            await until_async(lambda: all(lane.is_stopping for lane in lanes))
            go.set()
            await closing
            assert len(lists) == 1
            return
        app.pause(GROUP)
        await until_async(lambda: all(lane.is_paused for lane in lanes))
        go.set()
        await until_async(lambda: all(lane.idle.is_set() for lane in lanes))
        assert len(lists) == 1
        app.resume(GROUP)
        await until_async(lambda: acknowledged_by(app) == 8)
    assert sorted(lists, key=str) == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", ["def", "async def"])
@pytest.mark.parametrize(
    ("options", "before"),
    [
        ({"batch": 10}, 0),  # an incomplete batch waits for more
        ({"batch": 2, "rate": 2.0}, 2),  # the next list waits for its turn
        ({"rate": 1.0, "concurrency": 1}, 1),
    ],
)
async def test_batches_waiting_for_more_messages_or_their_rate_do_not_start_after_a_pause(
    log_place: LogSource, options: dict[str, Any], before: int, kind: str
) -> None:
    handled: list[tuple[int | None, int]] = []
    begun: list[int | None] = []

    class Pausing:
        """Calls a function with each message before the handler waits, for any kind of handler."""

        def encrypt(self, message: Message) -> Message:
            return message

        def decrypt(self, message: ReceivedMessage) -> ReceivedMessage:
            begun.append(message.offset)
            if len(begun) == before + 1:
                app.pause(GROUP)
            return message

    app = log_place.app(encryption=Pausing())

    def handle(message: ReceivedMessage) -> None:
        handled.append((message.offset, message.attempt))

    def handle_list(messages: list[ReceivedMessage]) -> None:
        for message in messages:
            handle(message)

    async def handle_async(message: ReceivedMessage) -> None:
        handle(message)

    async def handle_list_async(messages: list[ReceivedMessage]) -> None:
        handle_list(messages)

    handlers = {"def": (handle, handle_list), "async def": (handle_async, handle_list_async)}[kind]
    app.subscribe("t", source="log", **options)(handlers["batch" in options])
    log_place.send(*(b"x" for _ in range(4)))
    async with app:
        consumer = app._receivers[0].consumer
        assert isinstance(consumer, AsyncPushConsumer)
        await until_async(lambda: len(begun) > before)
        [lane] = [lane for lane in consumer._balance.lanes.values() if lane.queue.topic == "t"]
        await until_async(lambda: lane.is_paused and lane.idle.is_set())
        assert handled == [(offset, 1) for offset in range(before)]
        app.resume(GROUP)
        await until_async(lambda: acknowledged_by(app) == 4)
    assert handled == [(offset, 1) for offset in range(4)], "each once"


async def test_directory_without_a_log_fails_the_start_and_shutdown_hooks_run(tmp_path: Path) -> None:
    app, left = Txmsg(log=tmp_path, group="g"), []
    app.subscribe("t", source="log")(one)
    app.on_shutdown(lambda: left.append("left"))
    with pytest.raises(CorruptLog):
        await app.start()
    assert left == ["left"]
