"""Settings of a log's group by operators are followed by running members and by later ones."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.consumers.sources import GROUP, acknowledged_by
from tests.metaq.servers import served
from tests.waiting import until_async
from txmsg.client.app import Txmsg
from txmsg.errors import MisuseError
from txmsg.message import Message, ReceivedMessage
from txmsg.metaq import AsyncPullConsumer, LogAccess, LogProducer, open_log
from txmsg.metaq.consumer.push_consumer import AsyncPushConsumer
from txmsg.metaq.interface import LogGroupSettings
from txmsg.metaq.server.server_config import MetaQConfig

QUEUES = 4
LISTS = pytest.mark.parametrize("batch", [None, 3])


@pytest.fixture(params=["directory", "server"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LogAccess]:
    if request.param == "directory":
        with open_log(tmp_path / "log", append=True) as access:
            yield access
    else:
        config = MetaQConfig(data_dir=tmp_path / "log", listen="127.0.0.1:0")
        with served(config) as address, open_log(address) as access:
            yield access


def send(log: LogAccess, count: int) -> None:
    """Append so many messages to each queue."""
    for queue in range(QUEUES):
        LogProducer(log, queues=QUEUES).send_many([Message("t", b"")] * count, queue=queue)


class Reader:
    """An application with one handler of the group, for batches if `batch` is set, that waits until it may end."""

    def __init__(self, log: LogAccess, batch: int | None = None, **options: Any) -> None:
        self.app = Txmsg(log=log, group=GROUP)
        self.count = self.running = self.most = 0
        self.may_end = asyncio.Event()

        async def handle(message: ReceivedMessage) -> None:
            await self._handle(1)

        async def handle_list(messages: list[ReceivedMessage]) -> None:
            await self._handle(len(messages))

        handler: Any = handle if batch is None else handle_list
        self.app.subscribe("t", source="log", batch=batch, **options)(handler)

    async def _handle(self, count: int) -> None:
        self.count += count
        self.running += 1
        self.most = max(self.most, self.running)
        await self.may_end.wait()
        await asyncio.sleep(0)  # others may run concurrently
        self.running -= 1

    @property
    def consumer(self) -> AsyncPushConsumer:
        found = self.app._receivers[0].consumer
        assert isinstance(found, AsyncPushConsumer)
        return found

    async def until_it_follows(self, settings: LogGroupSettings) -> None:
        await until_async(lambda: self.consumer._settings == settings)

    async def until_it_has(self, *, queues: int) -> None:
        """Wait until it has fetched messages of so many queues."""
        await until_async(lambda: sum(lane.has_work for lane in self.consumer._balance.lanes.values()) >= queues)


@LISTS
async def test_stopping_a_group_stops_it_in_all_applications_until_it_is_started(
    log: LogAccess, batch: int | None
) -> None:
    one, other = Reader(log, batch), Reader(log, batch)
    for reader in (one, other):
        reader.may_end.set()
    send(log, 1)
    async with one.app, other.app:
        await until_async(lambda: len(one.consumer.queues()) == len(other.consumer.queues()) == QUEUES // 2)
        await until_async(lambda: one.count + other.count >= QUEUES)
        before = one.count, other.count
        await one.app.stop_group(GROUP)
        for reader in (one, other):
            await reader.until_it_follows(LogGroupSettings(stopped=True))
        await asyncio.to_thread(send, log, 2)
        for reader in (one, other):
            await reader.until_it_has(queues=QUEUES // 2)
        assert (one.count, other.count) == before
        await other.app.start_group(GROUP)
        await until_async(lambda: one.count + other.count == 3 * QUEUES)
        assert one.count > before[0]
        assert other.count > before[1]


@LISTS
async def test_application_in_a_stopped_group_handles_nothing_until_the_group_starts(
    log: LogAccess, batch: int | None
) -> None:
    log.join(GROUP, ["t"]).leave({})
    log.alter_group(GROUP, stopped=True)
    send(log, 2)
    reader = Reader(log, batch)
    reader.may_end.set()
    async with reader.app:
        await reader.until_it_has(queues=QUEUES)
        assert not reader.consumer.hands_on()
        reader.app.resume(GROUP)  # ends a pause of this process, not the operator's stop
        await until_async(lambda: not any(lane.is_paused for lane in reader.consumer._balance.lanes.values()))
        assert reader.count == 0
        await asyncio.to_thread(log.alter_group, GROUP, stopped=False)
        await until_async(lambda: acknowledged_by(reader.app) == 2 * QUEUES)
    assert reader.count == 2 * QUEUES


async def test_stop_lets_the_running_handler_finish_and_keeps_the_remaining_messages(log: LogAccess) -> None:
    send(log, 5)
    reader = Reader(log, concurrency=1)
    async with reader.app:
        await until_async(lambda: reader.running == 1)
        await reader.app.stop_group(GROUP)
        await reader.until_it_follows(LogGroupSettings(stopped=True))
        reader.may_end.set()
        await until_async(lambda: all(lane.idle.is_set() for lane in reader.consumer._balance.lanes.values()))
        assert (reader.count, acknowledged_by(reader.app)) == (1, 1)


async def test_polls_of_a_stopped_group_return_nothing(log: LogAccess) -> None:
    send(log, 1)
    consumer = AsyncPullConsumer(log, GROUP)
    consumer.subscribe("t")
    async with consumer:
        await until_async(lambda: len(consumer.queues()) == QUEUES)
        await asyncio.to_thread(log.alter_group, GROUP, stopped=True)
        await until_async(lambda: consumer._settings.stopped)
        await until_async(lambda: all(lane.has_batches for lane in consumer._balance.lanes.values()))
        assert await consumer.poll(timeout_s=0) == []
        await asyncio.to_thread(log.alter_group, GROUP, stopped=False)
        assert await consumer.poll(timeout_s=60)


@LISTS
async def test_group_concurrency_limits_the_subscription_and_can_change_at_runtime(
    log: LogAccess, batch: int | None
) -> None:
    log.join(GROUP, ["t"]).leave({})
    log.alter_group(GROUP, concurrency=2)
    send(log, 1)
    reader = Reader(log, batch, concurrency=3)
    async with reader.app:
        workers = reader.consumer._workers
        waiting = [*workers._own.values()] if batch is None else [*workers._slots.values()]
        await until_async(lambda: reader.running == 2 and all(each.has_waiting for each in waiting))
        reader.may_end.set()
        await until_async(lambda: acknowledged_by(reader.app) == QUEUES)
        assert reader.most == 2
        reader.may_end.clear()
        await asyncio.to_thread(log.alter_group, GROUP, concurrency=100)
        await reader.until_it_follows(LogGroupSettings(concurrency=100))
        await asyncio.to_thread(send, log, 1)
        await until_async(lambda: reader.running == 3)
        reader.may_end.set()
        await until_async(lambda: acknowledged_by(reader.app) == 2 * QUEUES)
    assert reader.most == 3, "the subscription's is the upper bound"


@LISTS
async def test_group_rate_delays_further_handlers_until_it_is_raised(log: LogAccess, batch: int | None) -> None:
    log.join(GROUP, ["t"]).leave({})
    log.alter_group(GROUP, rate_per_s=0.0001)
    send(log, 6)
    reader = Reader(log, batch)
    reader.may_end.set()
    async with reader.app:
        await until_async(lambda: len(reader.consumer._workers._paced) == QUEUES)
        assert reader.count == (batch or 1)
        timer = reader.consumer._workers._timer
        await asyncio.to_thread(log.alter_group, GROUP, rate_per_s=20.0)  # with waits between
        await reader.until_it_follows(LogGroupSettings(rate_per_s=20.0))
        assert timer is not None
        assert timer.cancelled(), "nothing waits any more for hours"
        await until_async(lambda: acknowledged_by(reader.app) == 6 * QUEUES)
    assert reader.count == 6 * QUEUES


async def test_queue_waiting_for_the_rate_can_be_reassigned_to_a_new_member(log: LogAccess) -> None:
    log.join(GROUP, ["t"]).leave({})
    log.alter_group(GROUP, rate_per_s=0.0001)
    send(log, 3)
    one, other = Reader(log), Reader(log)
    for reader in (one, other):
        reader.may_end.set()
    async with one.app:
        await until_async(lambda: len(one.consumer._workers._paced) == QUEUES)
        async with other.app:
            await until_async(lambda: len(other.consumer.queues()) == QUEUES // 2)
            await asyncio.to_thread(log.alter_group, GROUP, rate_per_s=0)
            await until_async(lambda: acknowledged_by(one.app) + acknowledged_by(other.app) == 3 * QUEUES)
    assert one.count + other.count == 3 * QUEUES, "each once"


async def test_stopping_a_group_of_a_log_in_kafka_is_refused() -> None:
    with open_log("kafka://127.0.0.1:9", timeout_s=1) as log:
        reader = Reader(log)
        async with reader.app:
            with pytest.raises(MisuseError, match=r"app\.pause\('g'\) in each process"):
                await reader.app.stop_group(GROUP)
