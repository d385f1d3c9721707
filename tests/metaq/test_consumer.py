"""A consumer of a log: its deliveries, their order, and its start position."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NoReturn

import pytest

from tests.metaq.consumers import WAIT_S, Seen, stored
from tests.metaq.logs import batch, fill
from tests.metaq.servers import log_at, served
from tests.waiting import until_async
from txmsg.consumer.failures import Retry
from txmsg.consumer.options import ConsumerOptions
from txmsg.errors import BrokerUnavailable, CorruptLog, MembershipLost, MisuseError, OffsetOutOfRange
from txmsg.message import ReceivedMessage
from txmsg.metaq.consumer import member, workers
from txmsg.metaq.consumer.async_pull_consumer import AsyncPullConsumer
from txmsg.metaq.consumer.fetcher import Fetcher
from txmsg.metaq.consumer.options import LogOptions, Missing
from txmsg.metaq.consumer.pull_consumer import PullConsumer
from txmsg.metaq.consumer.push_consumer import AsyncPushConsumer
from txmsg.metaq.format.frame import FrameColumns, encode, hole
from txmsg.metaq.interface import GroupMember, LogQueue, Member
from txmsg.metaq.location import open_log
from txmsg.metaq.server.server_config import MetaQConfig
from txmsg.metaq.store.log import Append, Log, LogConfig
from txmsg.metrics.catalogue import ExportingProcess
from txmsg.metrics.figures import Figures
from txmsg.wire.start import Start

T0, T1 = LogQueue("t", 0), LogQueue("t", 1)


async def test_handlers_get_each_queue_in_order_and_resume_at_the_stored_offset(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        fill(log, "t", 0, [3, 300, 2])
        fill(log, "t", 1, [5])
        for later in (0, 7):
            seen = Seen()
            consumer = AsyncPushConsumer(tmp_path, "g")
            consumer.subscribe("t")(seen)
            before = log.reader.queue("t", 0).end_offset() if later else 0
            fill(log, "t", 0, [later] if later else [])
            async with consumer:
                expected = {0: list(range(before, 305 + later)), **({} if later else {1: list(range(5))})}
                await until_async(lambda: seen.offsets == expected)  # noqa: B023
            assert stored(tmp_path, "g") == {T0: 305 + later, T1: 5}


async def test_handler_that_blocks_the_event_loop_is_named_with_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(workers, "SESSION_S", 0.6)
    with Log(tmp_path) as log:
        fill(log, "t", 0, [1])
        fill(log, "quick", 0, [1])
    seen = Seen()
    consumer = AsyncPushConsumer(tmp_path, "g")

    @consumer.subscribe("t")
    async def block(message: ReceivedMessage) -> None:
        time.sleep(0.4)  # noqa: ASYNC251 - it blocks the loop: that is what is tested
        seen(message)

    @consumer.subscribe("quick")
    async def handle(message: ReceivedMessage) -> None:
        seen(message)

    async with consumer:
        await until_async(lambda: len(seen.messages) == 2)
    [said] = [record.message for record in caplog.records if "blocked the event loop" in record.message]
    assert "handler of topic 't'" in said
    assert "asyncio.to_thread" in said


async def test_only_requested_tags_are_delivered_and_the_others_count_as_handled(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        for _ in range(2):
            tagged = FrameColumns([b""] * 4, [1], tag=["a", "b", "", "c"])
            log.append([Append("t", 0, encode(tagged)), Append("t", 1, encode(FrameColumns([b""] * 9, [1])))])
        seen = Seen()
        consumer = AsyncPushConsumer(tmp_path, "g")
        consumer.subscribe("t", "a || c")(seen)
        async with consumer:
            await until_async(lambda: seen.offsets == {0: [0, 3, 4, 7]})
            await until_async(lambda: stored(tmp_path, "g") == {T0: 8, T1: 18})


@pytest.mark.parametrize("start", [Start.earliest(), Start.latest()])
async def test_running_consumer_reads_new_queues_and_topics_from_their_first_message(
    tmp_path: Path, start: Start
) -> None:
    with Log(tmp_path) as log:
        fill(log, "t", 0, [2])
        seen = Seen()
        consumer = AsyncPushConsumer(tmp_path, "g", ConsumerOptions(start=start))
        consumer.subscribe("t")(seen)
        consumer.subscribe("later")(seen)
        async with consumer:
            await until_async(consumer.queues)
            log.append([batch("t", 0, 2, 1), batch("t", 5, 0, 2), batch("later", 7, 0, 1)])
            old = [0, 1] if start == Start.earliest() else []
            await until_async(lambda: seen.offsets == {0: [*old, 2], 5: [0, 1], 7: [0]})


async def test_every_broadcasting_member_gets_every_message_and_a_named_one_resumes(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        fill(log, "t", 0, [2])
        seen = {name: Seen() for name in ("passing", "named")}
        for broadcast, name in ((True, "passing"), ("host-1", "named")):
            consumer = AsyncPushConsumer(tmp_path, "g", ConsumerOptions(broadcast=broadcast))
            consumer.subscribe("t")(seen[name])
            async with consumer:
                await until_async(consumer.queues)
                end = fill(log, "t", 0, [1])
                await until_async(lambda: seen[name].offsets == {0: [end - 1]})  # noqa: B023
        assert list(stored(tmp_path, "g%host-1").values()) == [4]
        fill(log, "t", 0, [1])
        again = AsyncPushConsumer(tmp_path, "g", ConsumerOptions(broadcast="host-1"))
        again.subscribe("t")(seen["named"])
        async with again:
            await until_async(lambda: seen["named"].offsets == {0: [3, 4]})
    assert [each.name for each in (tmp_path / "groups").iterdir()] == ["g%host-1"], "a passing group was left behind"


async def test_polled_and_uncommitted_messages_are_redelivered(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        fill(log, "t", 0, [3, 2])
        fill(log, "t", 1, [4])
    everything = {0: [0, 1, 2, 3, 4], 1: [0, 1, 2, 3]}
    for committed, expected in ((False, everything), (True, everything), (True, {0: [5], 1: [4, 5]})):
        if expected is not everything:
            with Log(tmp_path) as log:
                fill(log, "t", 0, [1])
                fill(log, "t", 1, [2])
        consumer = AsyncPullConsumer(tmp_path, "g")
        consumer.subscribe("t")
        async with consumer:
            got: dict[int, list[int | None]] = {0: [], 1: []}
            while sum(map(len, got.values())) < sum(map(len, expected.values())):
                batches = await consumer.poll(WAIT_S)
                assert batches, "nothing came"
                for each in batches:
                    got[each.queue] += [message.offset for message in each.messages()]
            if committed:
                await consumer.commit()
        assert got == expected
    assert stored(tmp_path, "g") == {T0: 6, T1: 6}


def test_sync_consumer_polls_seeks_pauses_and_stops_at_once(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        for queue in (0, 1):
            log.append([batch("t", queue, 0, 3, at_us=1_000_000), batch("t", queue, 3, 3, at_us=2_000_000)])
    consumer = PullConsumer(tmp_path, "g")
    consumer.subscribe("t")

    def polled(count: int) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        while len(found) < count:
            batches = consumer.poll(30)
            assert batches, "nothing came"
            found += [(each.queue, row) for each in batches for row in each.to_arrow()["offset"].to_pylist()]
        return sorted(found)

    with consumer:
        both = [(queue, offset) for queue in (0, 1) for offset in range(6)]
        assert polled(12) == both
        assert consumer.poll(0.1) == []
        consumer.pause("t", 1)
        consumer.seek("t", 0, Start.offset(4))
        consumer.seek("t", 1, Start.earliest())
        assert polled(2) == [(0, 4), (0, 5)]
        assert consumer.poll(0.6) == []
        consumer.resume("t")
        assert polled(6) == both[6:]
        consumer.seek("t", 0, Start.at(datetime.fromtimestamp(2, UTC)))
        assert polled(3) == [(0, 3), (0, 4), (0, 5)]
        consumer.seek("t", 0, Start.latest())
        consumer.commit()
        assert stored(tmp_path, "g") == {T0: 6, T1: 6}
        with pytest.raises(MisuseError, match="topic t queue 9 is not owned by this member of group g"):
            consumer.seek("t", 9, Start.offset(0))
        waiter = threading.Thread(target=lambda: consumer.poll(1000))
        waiter.start()
    waiter.join(30)
    assert not waiter.is_alive(), "a poll went on after the stop"


async def test_seek_raises_the_error_of_the_log_and_its_queue_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Log(tmp_path) as log:
        fill(log, "t", 0, [3])
    consumer = AsyncPullConsumer(tmp_path, "g")
    consumer.subscribe("t")

    def refuse(_: object) -> NoReturn:
        raise BrokerUnavailable("the log's server is away")

    async with consumer:
        [before] = await consumer.poll(WAIT_S)
        with monkeypatch.context() as away:
            away.setattr(consumer._balance._member, "seek_done", refuse)
            with pytest.raises(BrokerUnavailable, match="the log's server is away"):
                await consumer.seek("t", 0, Start.offset(1))
        with Log(tmp_path) as log:
            fill(log, "t", 0, [1])
        [behind] = await consumer.poll(WAIT_S)
        assert (before.end_offset, behind.batch.base_offset) == (3, 3)
        await consumer.seek("t", 0, Start.offset(1))
        assert [message.offset for batch in await consumer.poll(WAIT_S) for message in batch.messages()][:1] == [1]


async def test_seek_of_a_queue_that_was_revoked_meanwhile_is_refused(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        fill(log, "t", 0, [3])
    consumer = AsyncPullConsumer(tmp_path, "g")
    consumer.subscribe("t")
    async with consumer:
        await until_async(lambda: consumer.queues() == [("t", 0)])
        lane = consumer._balance.lanes[T0]
        released = asyncio.create_task(consumer._balance._release(lane))
        consumer._balance._moving[T0] = released
        with pytest.raises(MembershipLost, match=r"topic t queue 0 is not owned .* `txmsg group seek --log`"):
            await consumer._balance.seek(lane, 0)
        await released


async def test_hole_is_counted_and_skipped(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        log.append([batch("t", 0, 0, 2), Append("t", 0, hole(7, 1)), batch("t", 0, 7, 2)])
    seen = Seen()
    consumer = AsyncPushConsumer(tmp_path, "g")
    consumer.subscribe("t")(seen)
    async with consumer:
        await until_async(lambda: seen.offsets == {0: [0, 1, 7, 8]})
        assert consumer.missed_count == 5
    assert stored(tmp_path, "g") == {T0: 9}


async def test_skipping_a_hole_does_not_commit_messages_polled_before_it(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        log.append([batch("t", 0, 0, 2), Append("t", 0, hole(7, 1)), batch("t", 0, 7, 2)])
    consumer = AsyncPullConsumer(tmp_path, "g")
    consumer.subscribe("t")
    async with consumer:
        ends: list[int] = []
        while ends[-1:] != [9]:
            ends += [each.end_offset for each in await consumer.poll(30)]
    assert ends == [2, 9]
    assert stored(tmp_path, "g") == {T0: 0}


async def test_queue_with_missing_error_stops_and_poll_raises_the_reason(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        log.append([batch("t", 0, 0, 2), Append("t", 0, hole(7, 1)), batch("t", 0, 7, 2), batch("t", 1, 0, 1)])
    consumer = AsyncPullConsumer(tmp_path, "g", missing="error")
    consumer.subscribe("t")
    async with consumer:
        offsets: list[int | None] = []

        async def poll_on() -> None:
            while True:
                for each in await consumer.poll(30):
                    offsets.extend(message.offset for message in each.messages())

        with pytest.raises(OffsetOutOfRange, match="offsets 2 to 6 of topic t queue 0 are missing"):
            await poll_on()
        assert sorted(offsets, key=str) == [0, 0, 1]
        assert consumer.missed_count == 0
        await consumer.seek("t", 0, Start.offset(7))
        [found] = await consumer.poll(30)
        assert found.end_offset == 9


@pytest.mark.parametrize(("missing", "first", "missed"), [("earliest", 2, 2), ("latest", 3, 3)])
async def test_messages_deleted_by_retention_are_counted_and_skipped_as_configured(
    tmp_path: Path, missing: Missing, first: int, missed: int
) -> None:
    access, queue = _cut_log(tmp_path)
    seen = Seen()
    consumer = AsyncPushConsumer(tmp_path, "g", of_log=LogOptions(missing=missing))
    consumer.subscribe("t")(seen)
    async with consumer:
        await until_async(lambda: consumer.missed_count == missed)
        fill(access, "t", 0, [1])
        await until_async(lambda: seen.offsets.get(0, [])[-1:] == [3])
        assert seen.offsets == {0: list(range(first, 4))}
    access.close()
    assert queue == T0


def _cut_log(root: Path) -> tuple[Log, LogQueue]:
    """Return a log of three messages, two of them deleted by retention, and a group that has read none."""
    log = Log(root, LogConfig(file_size_bytes_max=1, retention_s=1, checkpoint_s=3600), clock=lambda: 4e9)
    fill(log, "t", 0, [1])
    with open_log(root) as access:
        member = access.join("g", ["t"])
        assert member.take_queues([T0]) == {T0: 0}
    fill(log, "t", 0, [1, 1])
    log.delete_old()
    assert log.reader.queue("t", 0).range() == (2, 3)
    return log, T0


async def test_start_with_a_directory_without_a_log_is_refused(tmp_path: Path) -> None:
    consumer = AsyncPullConsumer(tmp_path, "g")
    consumer.subscribe("t")
    with pytest.raises(CorruptLog, match="is not a log"):
        await consumer.start()


async def test_remote_consumer_is_a_member_like_a_local_one_and_its_retries_are_stored(
    tmp_path: Path,
) -> None:
    with served(MetaQConfig(data_dir=tmp_path, listen="127.0.0.1:0")) as address:
        with log_at(address) as access:
            access.append([batch("t", queue, 0, 5) for queue in range(4)])
            near, far = Seen(lambda message: message.attempt == 1), Seen(lambda message: message.attempt == 1)
            consumers = []
            for where, seen in ((tmp_path, near), (address, far)):
                consumer = AsyncPushConsumer(where, "g")
                consumer._balance_s = 0.05
                consumer.subscribe("t", retry=Retry(delays_s=[0]))(seen)
                consumers.append(consumer)
            on_path, at_address = consumers
            async with on_path, at_address:
                await until_async(lambda: len(on_path.queues()) == len(at_address.queues()) == 2)
                access.append([batch("t", queue, 5, 2) for queue in range(4)])
                tries = Counter[tuple[int | None, int | None, int]]()

                def all_tried_twice() -> bool:
                    tries.clear()
                    tries.update((each.queue, each.offset, each.attempt) for each in near.messages + far.messages)
                    return len(tries) == 4 * 7 * 2

                await until_async(all_tried_twice)
                assert any(message.offset in {5, 6} for message in near.messages)
                assert any(message.offset in {5, 6} for message in far.messages)
            assert stored(access, "g")[T0] == 7


async def test_member_whose_files_are_removed_rejoins(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        fill(log, "t", 0, [2])
        seen = Seen()
        consumer = AsyncPushConsumer(tmp_path, "g")
        consumer._balance_s = 0.05
        consumer.subscribe("t")(seen)
        async with consumer:
            await until_async(lambda: seen.offsets == {0: [0, 1]})
            (tmp_path / "groups").rename(tmp_path / "gone")
            await until_async(lambda: seen.offsets == {0: [0, 1, 0, 1]})
            assert len(open_log(tmp_path).group("g").members) == 1


async def test_consumer_stopped_while_joining_is_not_a_member(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Log(tmp_path) as log:
        fill(log, "t", 0, [2])
    with open_log(tmp_path) as access:
        join, joining, may_join = access.join, threading.Event(), threading.Event()

        def slow(*args: Any, **options: Any) -> GroupMember:
            joining.set()
            assert may_join.wait(60)
            return join(*args, **options)

        monkeypatch.setattr(access, "join", slow)
        consumer = AsyncPullConsumer(access, "g")
        consumer.subscribe("t")
        await consumer.start()
        await until_async(joining.is_set)
        stopping = asyncio.create_task(consumer.close())
        await until_async(lambda: consumer._balance._has_left)
        may_join.set()
        await stopping
        assert access.group("g").members == ()


async def test_seek_by_another_process_moves_a_running_member(tmp_path: Path) -> None:
    with Log(tmp_path) as log, open_log(tmp_path) as access:
        fill(log, "t", 0, [4])
        seen = Seen()
        consumer = AsyncPushConsumer(tmp_path, "g")
        consumer._balance_s = 0.05
        consumer.subscribe("t")(seen)
        async with consumer:
            await until_async(lambda: seen.offsets == {0: [0, 1, 2, 3]})
            access.seek("g", {T0: 2})
            await until_async(lambda: seen.offsets == {0: [0, 1, 2, 3, 2, 3]})
        assert stored(tmp_path, "g") == {T0: 4}


async def test_close_leaves_no_tasks(tmp_path: Path) -> None:
    """Also while the consumer waits for its handlers to progress: asyncio would report the task."""

    class Room(asyncio.Event):
        async def wait(self) -> Literal[True]:
            is_waiting.set()
            return await super().wait()

    is_waiting = asyncio.Event()
    before = asyncio.all_tasks()
    with Log(tmp_path):
        consumer = AsyncPushConsumer(tmp_path, "g")
        consumer.subscribe("t")(Seen())
        async with consumer:
            consumer._room = Room()
            async with asyncio.timeout(WAIT_S):
                await is_waiting.wait()
    assert asyncio.all_tasks() == before


async def test_close_waits_for_the_handler_up_to_its_timeout(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        fill(log, "t", 0, [3])
    entered, leave = threading.Event(), threading.Event()
    for close_timeout_s, expected in ((0.05, 0), (30.0, 1)):
        consumer = AsyncPushConsumer(tmp_path, "g", ConsumerOptions(close_timeout_s=close_timeout_s))

        @consumer.subscribe("t")
        def handle(_: ReceivedMessage) -> None:
            entered.set()
            assert leave.wait(60)

        entered.clear()
        leave.clear()
        await consumer.start()
        await until_async(entered.is_set)
        stopping = asyncio.create_task(consumer.close())
        if expected:
            await until_async(lambda: consumer._workers.is_stopping)  # noqa: B023
            leave.set()
        await stopping
        leave.set()
        assert stored(tmp_path, "g") == {T0: expected}, "the queue was given back at another place"


async def test_failing_strategy_is_logged_and_retried(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Log(tmp_path) as log:
        fill(log, "t", 0, [1])
    failing = [KeyError("site"), MisuseError("nobody has it")]

    def strategy(queues: Sequence[LogQueue], members: Sequence[Member]) -> Mapping[str, Sequence[LogQueue]]:
        if failing:
            raise failing.pop()
        return {members[0].id: queues}

    monkeypatch.setattr(member, "RETRY_S", 0.01)
    seen = Seen()
    consumer = AsyncPushConsumer(tmp_path, "g", of_log=LogOptions(strategy=strategy))
    consumer._balance_s = 0.01
    consumer.subscribe("t")(seen)
    async with consumer:
        await until_async(lambda: seen.offsets == {0: [0]})
    assert "group g is interrupted, and retries: nobody has it" in caplog.text
    assert "KeyError: 'site'" in caplog.text


async def test_pause_without_a_topic_pauses_all_queues_between_messages(tmp_path: Path) -> None:
    seen, reached, go = Seen(), asyncio.Event(), asyncio.Event()
    consumer = AsyncPushConsumer(tmp_path, "g")

    @consumer.subscribe("t")
    async def handle(message: ReceivedMessage) -> None:
        seen(message)
        if len(seen.messages) == 3:
            consumer.pause()
            reached.set()
            await go.wait()

    with Log(tmp_path) as log:
        fill(log, "t", 0, [20])
        async with consumer:
            await asyncio.wait_for(reached.wait(), WAIT_S)
            fill(log, "t", 1, [5])
            await until_async(lambda: ("t", 1) in consumer.queues())
            go.set()
            await until_async(lambda: handled_by(consumer) == 3)
            assert seen.offsets == {0: [0, 1, 2]}
            consumer.resume()
            await until_async(lambda: len(seen.messages) == 25)
    assert seen.offsets == {0: list(range(20)), 1: list(range(5))}


async def test_consumer_paused_before_its_start_gets_no_messages_until_resume(tmp_path: Path) -> None:
    seen = Seen()
    consumer = AsyncPushConsumer(tmp_path, "g")
    consumer.subscribe("t")(seen)
    consumer.pause()
    with Log(tmp_path) as log:
        fill(log, "t", 0, [5])
    async with consumer:
        await until_async(lambda: consumer.queues() == [("t", 0)])
        await consumer._balance.seek(consumer._balance.lanes[T0], 2)  # fetched messages are dropped, none was handled
        assert not seen.messages
        consumer.resume()
        await until_async(lambda: seen.offsets == {0: [2, 3, 4]})


async def test_metrics_count_handled_and_failed_messages(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        fill(log, "t", 0, [5])
    consumer = AsyncPushConsumer(tmp_path, "g")
    consumer.subscribe("t")(Seen(lambda message: message.offset == 2 and message.attempt == 1))
    assert handled_by(consumer) == 0
    async with consumer:
        await until_async(lambda: handled_by(consumer) == 5)  # with the retry of the one that failed
        assert figure_of(consumer, "txmsg_client_refused_messages_total") == 1
    assert figure_of(consumer, "txmsg_client_received_messages_total") == 6
    assert figure_of(consumer, "txmsg_client_held_messages") == 0


async def test_metrics_can_be_read_at_any_moment_of_a_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a thread that serves metrics does."""
    read: list[object] = []
    consumer = AsyncPushConsumer(tmp_path, "g")
    consumer.subscribe("t")(Seen())

    class ReadWhenMade(Fetcher):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            read.append(figure_of(consumer, "txmsg_client_held_messages"))

    monkeypatch.setattr(member, "Fetcher", ReadWhenMade)
    with Log(tmp_path):
        async with consumer:
            assert read == [0]


def handled_by(consumer: AsyncPushConsumer) -> object:
    return figure_of(consumer, "txmsg_client_acknowledged_messages_total")


def figure_of(consumer: AsyncPushConsumer, name: str) -> object:
    figures = Figures(ExportingProcess.APPLICATION)
    consumer._put_figures(figures)
    [(_, values)] = [(metric, values) for metric, values in figures.series() if metric.name == name]
    [value] = values.values()
    return value
