"""Slow transfers give way to others, and only then. On a separate event loop with a clock set by the test."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import Any

import pytest

from txmsg.metaq.server.transfers import Transfer, Transfers

MIB = 1024 * 1024


class Loop(asyncio.SelectorEventLoop):
    """An event loop whose time is set by the test."""

    now = 100.0

    def time(self) -> float:
        return self.now


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": Loop}


@pytest.fixture
async def loop() -> Loop:
    running = asyncio.get_running_loop()
    assert isinstance(running, Loop)
    return running


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_only_the_slowest_transfer_is_ended_for_waiting_ones(loop: Loop) -> None:
    room = Transfers(4 * MIB, 20)
    ended: list[str] = []

    async def stuck(transfer: Transfer, name: str) -> None:
        try:
            async with transfer.step():
                await asyncio.Event().wait()
        except TimeoutError:
            ended.append(name)

    with ExitStack() as stack:
        slow, quick = (stack.enter_context(room.begun(name)) for name in "ab")
        of_slower = stack.enter_context(ExitStack())
        slower = of_slower.enter_context(room.begun("c"))
        await room.hold_bytes(slower, MIB)
        loop.now += 0.5
        await room.hold_bytes(slow, MIB)
        await room.hold_bytes(quick, 2 * MIB)
        quick.moved_bytes = 8 * MIB
        stalled = [
            asyncio.create_task(stuck(transfer, name)) for transfer, name in ((slow, "slow"), (slower, "slower"))
        ]
        await settle()
        with room.begun("d") as late:
            waits = asyncio.create_task(room.hold_bytes(late, MIB))
            await settle()
            assert not ended, "a second's grace"
            loop.now += 1.2
            await settle()
            assert ended == ["slower"]
            assert not waits.done(), "its room is free when it has ended"
            of_slower.close()
            await waits
        for task in stalled:
            task.cancel()


async def test_caller_above_its_share_ends_its_own_transfers(loop: Loop) -> None:
    room = Transfers(8 * MIB, 20)

    with ExitStack() as stack:
        mine = [stack.enter_context(room.begun("greedy")) for _ in range(3)]
        other = stack.enter_context(room.begun("other"))
        await room.hold_bytes(other, MIB)
        for transfer in mine[:2]:
            await room.hold_bytes(transfer, MIB)
        third = asyncio.create_task(room.hold_bytes(mine[2], MIB))
        await settle()
        assert not third.done(), "two of eight are its share"
        loop.now += 60
        await settle()
        assert [transfer.is_ended for transfer in (*mine, other)] == [True, False, False, False]
        third.cancel()
        more = stack.enter_context(room.begun("another"))
        await room.hold_bytes(more, MIB)


async def test_transfers_waiting_for_more_memory_proceed_in_turn(loop: Loop) -> None:
    room = Transfers(4 * MIB, 20)
    all_hold = asyncio.Barrier(4)
    sent: list[str] = []

    async def send(name: str) -> None:
        with room.begun(name) as transfer:
            await room.hold_bytes(transfer, MIB)
            await all_hold.wait()
            await room.hold_bytes(transfer, 2 * MIB)
            async with transfer.step():
                sent.append(name)

    async with asyncio.TaskGroup() as tasks:
        sending = [tasks.create_task(send(name)) for name in "abcd"]
        for _ in range(4):
            await settle()
            loop.now += 2
        for task in sending:
            task.cancel()
    assert sorted(sent) == ["a", "b", "c", "d"]
    assert room.held_bytes == 0


async def test_time_waiting_for_memory_does_not_count_against_a_transfer(loop: Loop) -> None:
    room = Transfers(2 * MIB, 20)

    with room.begun("a") as transfer, ExitStack() as of_other:
        await room.hold_bytes(transfer, MIB)
        other = of_other.enter_context(room.begun("b"))
        await room.hold_bytes(other, MIB)
        other.moved_bytes = 900 * MIB
        loop.now += 0.5
        waits = asyncio.create_task(room.hold_bytes(transfer, 2 * MIB))
        await settle()
        loop.now += 60
        await settle()
        assert (waits.done(), transfer.held_bytes, room.held_bytes) == (False, 0, MIB)
        of_other.close()
        await waits
        assert transfer.slow_for_s(loop.now) == pytest.approx(-0.5), "half of its second's grace is left"
        async with transfer.step():
            transfer.moved_bytes = 2 * MIB


async def test_transfer_has_a_total_timeout(loop: Loop) -> None:
    room = Transfers(8 * MIB, 20)

    with room.begun("a") as transfer, room.begun("b") as second:
        assert room.hold_now(transfer, MIB)
        assert room.hold_now(transfer, MIB // 2), "it holds so much already"
        assert not room.hold_now(second, 8 * MIB), "more than there is room for, and it is not alone"
        assert (transfer.held_bytes, second.held_bytes) == (MIB, 0)
        transfer.moved_bytes = 9 * MIB
        for _ in range(2):
            loop.now += 14
            async with transfer.step():
                pass
        loop.now += 3
        with pytest.raises(TimeoutError):
            async with transfer.step():
                await asyncio.Event().wait()


async def test_transfer_timing_out_in_the_same_loop_turn_does_not_fail_a_waiting_one(
    loop: Loop,
) -> None:
    room = Transfers(MIB, 20)

    async def stuck(transfer: Transfer) -> None:
        async with transfer.step():
            await asyncio.Event().wait()

    with ExitStack() as of_slow, room.begun("b") as late:
        slow = of_slow.enter_context(room.begun("a"))
        await room.hold_bytes(slow, MIB)
        stalled = asyncio.create_task(stuck(slow))
        waits = asyncio.create_task(room.hold_bytes(late, MIB))
        await settle()
        loop.now += 60  # the step's timeout passes, and so does a check of the waiting transfer
        with pytest.raises(TimeoutError):
            await stalled
        assert slow.is_ended
        of_slow.close()
        await waits
        assert late.held_bytes == MIB
