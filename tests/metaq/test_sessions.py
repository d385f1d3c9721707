"""Remote members: silence ends them, repeats change nothing, and a pause of the server expires no member."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest

from txmsg.errors import MembershipLost, MisuseError, ProtocolError, StorageError
from txmsg.metaq.interface import GroupMember, GroupView, LogQueue
from txmsg.metaq.server.sessions import MemberSessions

A = LogQueue("a", 0)


class Member:
    """A member that records its calls."""

    id = "m"
    group = "g"

    def __init__(self) -> None:
        self.stored: list[dict[LogQueue, int]] = []
        self.left: list[dict[LogQueue, int]] = []
        self.error: Exception | None = None

    def view(self) -> GroupView:
        return GroupView((), (), {})

    def take_queues(self, queues: Collection[LogQueue]) -> dict[LogQueue, int]:
        return dict.fromkeys(queues, 0)

    def store(self, offsets: Mapping[LogQueue, int]) -> None:
        self.stored.append(dict(offsets))

    def seek_done(self, offsets: Mapping[LogQueue, int]) -> None:
        self.store(offsets)

    def release(self, offsets: Mapping[LogQueue, int]) -> None:
        self.store(offsets)

    def leave(self, offsets: Mapping[LogQueue, int]) -> None:
        if self.error is not None:
            raise self.error
        self.left.append(dict(offsets))


class World:
    """Sessions with a clock set by the test."""

    def __init__(self, threads: ThreadPoolExecutor) -> None:
        self.now = 100.0
        self.sessions = MemberSessions(threads, clock=lambda: self.now)
        self.member = Member()
        self.joins = 0

    def join(self) -> GroupMember:
        self.joins += 1
        return self.member

    async def passes(self, seconds: float) -> None:
        """Let time pass, in steps as a server makes them."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 0.25)
            await self.sessions.end_silent()

    async def store(self, call: int, offset: int) -> None:
        await self.sessions.call(b"s", call, lambda member: member.store({A: offset}))


@pytest.fixture
def world() -> Iterator[World]:
    with ThreadPoolExecutor(2) as threads:
        yield World(threads)


async def test_silent_member_is_removed_and_its_late_calls_are_refused(world: World) -> None:
    assert await world.sessions.join(b"s", world.join, 10) == "m"
    await world.passes(9)
    await world.store(1, 5)
    await world.passes(9)
    assert not world.member.left, "each call renews it"
    await world.passes(2)
    assert world.member.left == [{}]
    with pytest.raises(MembershipLost, match="silent for too long"):
        await world.store(2, 6)
    assert world.member.stored == [{A: 5}]
    assert len(world.sessions) == 0


async def test_pause_of_the_server_does_not_expire_members(world: World) -> None:
    await world.sessions.join(b"s", world.join, 10)
    await world.passes(5)
    world.now += 1000
    await world.sessions.end_silent()
    await world.passes(4)
    assert not world.member.left
    await world.passes(2)
    assert world.member.left


async def test_repeated_call_runs_once_and_an_older_one_is_ignored(world: World) -> None:
    await world.sessions.join(b"s", world.join, 10)
    first = await world.sessions.call(b"s", 1, lambda member: member.take_queues([A]))
    again = await world.sessions.call(b"s", 1, lambda member: member.take_queues([]))
    assert first == again == {A: 0}
    await world.store(2, 5)
    await world.store(2, 5)
    assert world.member.stored == [{A: 5}]
    with pytest.raises(ProtocolError, match="call 1 of a member comes after its call 2"):
        await world.store(1, 3)
    with pytest.raises(MembershipLost):
        await world.sessions.call(b"nobody", 1, lambda member: member.view())


async def test_call_of_a_disconnected_caller_runs_once(world: World) -> None:
    await world.sessions.join(b"s", world.join, 10)
    begun, may_end = threading.Event(), threading.Event()

    def release(member: GroupMember) -> None:
        member.release({A: 5})
        begun.set()
        assert may_end.wait(60)

    gone = asyncio.create_task(world.sessions.call(b"s", 1, release))
    assert await asyncio.to_thread(begun.wait, 60)
    gone.cancel()
    again = asyncio.create_task(world.sessions.call(b"s", 1, release))
    await asyncio.wait([gone])
    may_end.set()
    await again
    assert world.member.stored == [{A: 5}]


async def test_repeated_join_takes_effect_once(world: World) -> None:
    await asyncio.gather(*(world.sessions.join(b"s", world.join, 10) for _ in range(3)))
    await world.sessions.join(b"s", world.join, 10)
    assert world.joins == 1
    with pytest.raises(MisuseError, match=r"a session of 0\.5 s: 1 to 300 are allowed"):
        await world.sessions.join(b"t", world.join, 0.5)


async def test_failed_leave_of_a_member_is_retried(world: World) -> None:
    await world.sessions.join(b"s", world.join, 10)
    world.member.error = StorageError("the disk is full")
    with pytest.raises(StorageError):
        await world.sessions.leave(b"s", lambda member: member.leave({A: 4}))
    await world.passes(11)
    assert not world.member.left
    world.member.error = None
    await world.passes(1)
    assert world.member.left == [{}]
    await world.sessions.leave(b"s", lambda member: member.leave({A: 4}))
    assert world.member.left == [{}], "leaving twice is fine"
