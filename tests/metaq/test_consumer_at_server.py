"""A consumer of a remote log: the same as of a local one, and when it is disconnected."""

from __future__ import annotations

from contextlib import AsyncExitStack, ExitStack
from dataclasses import replace
from pathlib import Path

from tests.chaos.plan import Cut
from tests.metaq.consumers import Seen, stored
from tests.metaq.logs import batch
from tests.metaq.servers import linked, log_at, served
from tests.waiting import until_async
from txmsg.consumer.failures import Retry
from txmsg.metaq.consumer.options import LogOptions
from txmsg.metaq.consumer.push_consumer import AsyncPushConsumer
from txmsg.metaq.consumer.retries import tried_of
from txmsg.metaq.group.assignment import averaged, wanted_by
from txmsg.metaq.interface import LogQueue
from txmsg.metaq.local import LocalLog
from txmsg.metaq.remote.remote_log import RemoteLog
from txmsg.metaq.server.server_config import MetaQConfig

SESSION_S = 4.0
"""Session of the disconnected member. The other's is longer: it must survive on a slow machine."""


class Clock:
    """Time that passes only when told to."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


async def test_order_offsets_retries_and_dead_letters_at_a_server_equal_those_in_a_directory(tmp_path: Path) -> None:
    seen, clock = (
        Seen(lambda message: message.offset in {1, 4} and (message.offset == 4 or message.attempt == 1)),
        Clock(),
    )
    with served(MetaQConfig(data_dir=tmp_path, listen="127.0.0.1:0")) as address, log_at(address) as log:
        log.append([batch("t", 0, 0, 3), batch("t", 1, 0, 2)])
        consumer = AsyncPushConsumer(address, "g")
        consumer._clock, consumer._balance_s = clock, 0.05
        consumer.subscribe("t", retry=Retry(retries_max=1, delays_s=[5.0]))(seen)
        async with consumer:
            await until_async(lambda: seen.offsets == {0: [0, 1, 2], 1: [0, 1]})
            log.append([batch("t", 0, 3, 2)])
            await until_async(lambda: stored(log, "g").get(LogQueue("t", 0)) == 5)
            retries = LogQueue("%RETRY%g", 1)
            await until_async(lambda: log.ranges([retries])[retries].end == 3)
            assert len(seen.messages) == 7, "a retry came before its time"
            clock.now += 5.0
            await until_async(lambda: len(seen.messages) == 10)
            letters = LogQueue("%DLQ%g", 0)
            await until_async(lambda: log.ranges([letters])[letters].end == 1)
            await until_async(lambda: stored(log, "g")[retries] == 3)
        [fetched] = log.fetch({letters: 0})
        [letter] = [tried_of(message) for each in fetched.batches for message in each.messages()]
        assert (letter.message.queue, letter.message.offset, len(letter.errors)) == (0, 4, 2)
        assert sorted((offset, attempt) for offset, attempt in seen.attempts if attempt == 2) == [
            (1, 2),
            (1, 2),
            (4, 2),
        ]
        assert log.group("g").members == (), "it has left"


def test_members_at_a_server_and_in_its_directory_see_zones_of_each_other(tmp_path: Path) -> None:
    config = MetaQConfig(data_dir=tmp_path, listen="127.0.0.1:0", zone="south")
    with served(config) as address, log_at(address) as log, LocalLog(tmp_path) as beside:
        log.append([batch("t", queue, 0, 1) for queue in range(4)])
        far, near = log.join("g", ["t"], zone="north"), beside.join("g", ["t"], zone="south")
        for member in (far, near):
            of = member.view()
            assert of.zone == "south"
            assert {each.id: each.zone for each in of.members} == {far.id: "north", near.id: "south"}
            assert wanted_by(near.id, of, averaged) == {*of.queues}
        near.leave({})
        assert wanted_by(far.id, far.view(), averaged) == {*far.view().queues}
        far.leave({})
    with served(replace(config, zone="")) as address, log_at(address) as log:
        assert log.join("g", ["t"]).view().zone == ""


async def test_consumers_in_the_zone_of_the_log_own_its_queues(tmp_path: Path) -> None:
    with served(MetaQConfig(data_dir=tmp_path, listen="127.0.0.1:0", zone="south")) as address:
        with log_at(address) as log:
            log.append([batch("t", queue, 0, 1) for queue in range(4)])
            consumers = [AsyncPushConsumer(address, "g", of_log=LogOptions(zone=zone)) for zone in ("north", "south")]
            seen = [Seen(), Seen()]
            async with AsyncExitStack() as stack:
                for consumer, handler in zip(consumers, seen, strict=True):
                    consumer._balance_s = 0.05
                    consumer.subscribe("t")(handler)
                    await stack.enter_async_context(consumer)
                await until_async(lambda: "g" in log.groups() and len(log.group("g").members) == 2)
                near = next(each.id for each in log.group("g").members if each.zone == "south")
                await until_async(lambda: {each.owner for each in log.group("g").queues} == {near})
                log.append([batch("t", queue, 1, 1) for queue in range(4)])
                await until_async(lambda: sum(message.offset == 1 for message in seen[1].messages) == 4)
            assert not any(message.offset == 1 for message in seen[0].messages)


async def test_disconnected_member_loses_its_queues_and_rejoins_without_skipping_messages(tmp_path: Path) -> None:
    queues = [LogQueue("t", number) for number in range(4)]
    here, there = Seen(), Seen()
    with ExitStack() as stack:
        address = stack.enter_context(served(MetaQConfig(data_dir=tmp_path, listen="127.0.0.1:0")))
        link, near = stack.enter_context(linked(address))
        log = stack.enter_context(log_at(address))
        sessions_s = {address: 60.0, near: SESSION_S}
        logs = [stack.enter_context(RemoteLog(each, session_s=seconds)) for each, seconds in sessions_s.items()]
        consumers = [AsyncPushConsumer(log, "g") for log in logs]
        for consumer, seen in zip(consumers, (here, there), strict=True):
            consumer._balance_s = 0.1
            consumer.subscribe("t")(seen)

        def append(start: int) -> None:
            log.append([batch("t", queue.queue, start, 10) for queue in queues])

        def shares() -> list[int]:
            owners = [queue.owner for queue in log.group("g").queues]
            return sorted(owners.count(each) for each in set(owners) - {None})

        append(0)
        async with consumers[0], consumers[1]:
            await until_async(lambda: log.groups() == ["g"])
            await until_async(lambda: shares() == [2, 2])
            await until_async(lambda: stored(log, "g") == dict.fromkeys(queues, 10))
            link.cut(Cut.LOST)
            append(10)
            await until_async(lambda: stored(log, "g") == dict.fromkeys(queues, 20))
            assert shares() == [4]
            link.heal()
            await until_async(lambda: shares() == [2, 2])
            append(20)
            await until_async(lambda: stored(log, "g") == dict.fromkeys(queues, 30))
        for queue in queues:
            got = {*here.offsets.get(queue.queue, ()), *there.offsets.get(queue.queue, ())}
            assert got == set(range(30))
            for seen in (here, there):
                offsets = seen.offsets.get(queue.queue, [])
                assert offsets == sorted(offsets), "a queue went back though nothing was lost"
