"""The queues that a member of a group owns, and their lanes: joins, takes, releases, moves and stores.

No queue is released, or moved, before its handler has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Executor
from contextlib import suppress
from typing import Any, Concatenate, ParamSpec, TypeVar

from txmsg.errors import MembershipLost, TxmsgError
from txmsg.metaq.consumer.lane import Lane, chunk_count_of
from txmsg.metaq.group.assignment import Strategy, wanted_by
from txmsg.metaq.interface import RETRIES, GroupMember, GroupView, LogAccess, LogGroupSettings, LogQueue
from txmsg.runtime.logs import EventLog
from txmsg.wire.start import Start
from txmsg.wire.tags import ALL_TAGS, TagExpression

_log = EventLog(__name__)

P = ParamSpec("P")
T = TypeVar("T")


class Balance:
    """The queues of one consumer's member.

    list_counts: the number of messages that the handler of a topic gets together. thread: of its own, for calls of the
    member one after the other.
    """

    def __init__(
        self,
        access: LogAccess,
        group: str,
        topics: Mapping[str, TagExpression],
        *,
        start: Start,
        strategy: Strategy,
        zone: str,
        reads_retries: bool,
        list_counts: Mapping[str, int],
        thread: Executor,
        on_ready: Callable[[Lane], None],
        on_settings: Callable[[LogGroupSettings], None],
    ) -> None:
        self.lanes: dict[LogQueue, Lane] = {}
        self._access = access
        self._group = group
        self._topics = topics
        self._reads = (*topics, RETRIES + group) if reads_retries else tuple(topics)
        self._start = start
        self._strategy = strategy
        self._zone = zone
        self._list_counts = list_counts
        self._thread = thread
        self._on_ready = on_ready
        self._on_settings = on_settings
        self._member: GroupMember | None = None
        self._has_left = False
        self._moving: dict[LogQueue, asyncio.Task[None]] = {}
        self.is_paused = False
        """True if lanes that are taken from now on are paused."""
        self._told: object = None

    async def _call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, lambda: function(*args, **kwargs))

    async def _ask_member(
        self, method: Callable[Concatenate[GroupMember, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        assert self._member is not None
        return await self._call(method, self._member, *args, **kwargs)

    # ---- one step

    async def step(self) -> None:
        """Store offsets, then take and release queues as assigned to this member."""
        if self._member is None:
            await self._call(self._join)
        try:
            await self.store()
            view = await self._ask_member(lambda member: member.view())
            self._on_settings(view.settings)  # before it has queues: nothing of a stopped group begins
            self._move(view)
            await self._balance(view)
        except MembershipLost as exc:
            _log.warning("member.lost", "group %(group)s: %(error)s", group=self._group, error=exc)
            await self._lost()

    def _join(self) -> None:
        """Join on the member's thread, without interruption: the new member leaves at once if its consumer has
        ended.
        """
        self._member = self._access.join(
            self._group,
            self._reads,
            start=self._start,
            strategy=getattr(self._strategy, "__qualname__", str(self._strategy)),
            zone=self._zone,
        )
        if self._has_left:
            self._member.leave({})
            return
        _log.info(
            "member.joined", "group %(group)s: joined as member %(member)s", group=self._group, member=self._member.id
        )

    async def store(self) -> None:
        """Store the position of each lane."""
        moved = {
            queue: (lane, lane.position)
            for queue, lane in self.lanes.items()
            if lane.position != lane.stored and queue not in self._moving
        }
        if moved:
            offsets = {queue: offset for queue, (_, offset) in moved.items()}
            await self._ask_member(lambda member: member.store(offsets))
            for lane, offset in moved.values():
                lane.stored = offset

    async def _balance(self, view: GroupView) -> None:
        assert self._member is not None
        self._tell_strategies(view)
        wanted = wanted_by(self._member.id, view, self._strategy)
        # In a task of its own: a slow handler delays the release of its own queue only (decision 0022).
        for queue in self.lanes.keys() - wanted - self._moving.keys():
            self._moving[queue] = asyncio.create_task(self._logged(self._release, self.lanes[queue]))
        if free := sorted(wanted - self.lanes.keys()):
            taken = await self._ask_member(lambda member: member.take_queues(free))
            for queue, offset in taken.items():
                lane = self.lanes[queue] = self._lane(queue, offset)
                _log.info(
                    "member.owns",
                    "group %(group)s: owns topic %(topic)s queue %(queue)d from offset %(offset)d on",
                    group=self._group,
                    topic=queue.topic,
                    queue=queue.queue,
                    offset=offset,
                )
                self._on_ready(lane)

    def _lane(self, queue: LogQueue, offset: int) -> Lane:
        wanted = self._topics.get(queue.topic)
        tags = ALL_TAGS if wanted is None else wanted
        list_count = self._list_counts.get(queue.topic) or max(self._list_counts.values(), default=1)
        lane = Lane(queue, offset, tags, is_retry=wanted is None, chunk_count=chunk_count_of(list_count))
        lane.is_paused = self.is_paused
        return lane

    def _tell_strategies(self, view: GroupView) -> None:
        strategies = sorted({member.strategy for member in view.members})
        if len(strategies) > 1 and strategies != self._told:
            self._told = strategies
            _log.warning(
                "member.strategies_differ",
                "group %(group)s: its members share out queues by different strategies (%(strategies)s): a queue that "
                "no member takes waits",
                group=self._group,
                strategies=", ".join(strategies),
            )

    # ---- lanes that are released, or continue elsewhere

    def _move(self, view: GroupView) -> None:
        for queue, offset in view.sought.items():
            if queue in self.lanes and queue not in self._moving:
                self._moving[queue] = asyncio.create_task(self._logged(self._seek, self.lanes[queue], offset))

    async def _logged(
        self,
        move: Callable[Concatenate[Lane, P], Coroutine[Any, Any, None]],
        lane: Lane,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> None:
        """Move a lane that no caller waits for: a failure is logged, and tried again at the next step."""
        try:
            await move(lane, *args, **kwargs)
        except MembershipLost:
            pass  # the next step reports it
        except TxmsgError as exc:
            _log.warning(
                "member.queue_not_moved",
                "group %(group)s: topic %(topic)s queue %(queue)d cannot be moved now: %(error)s",
                group=self._group,
                topic=lane.queue.topic,
                queue=lane.queue.queue,
                error=exc,
            )

    async def _release(self, lane: Lane) -> None:
        async with _stopped(self, lane):
            # Only now, when its handler has ended: the next owner may begin at once.
            await self._ask_member(lambda member: member.release({lane.queue: lane.offset}))
            del self.lanes[lane.queue]
            _log.info(
                "member.released",
                "group %(group)s: gave back topic %(topic)s queue %(queue)d",
                group=self._group,
                topic=lane.queue.topic,
                queue=lane.queue.queue,
            )

    async def _seek(self, lane: Lane, offset: int) -> None:
        async with _stopped(self, lane):
            await self._ask_member(lambda member: member.seek_done({lane.queue: offset}))
            _log.info(
                "member.sought",
                "group %(group)s: topic %(topic)s queue %(queue)d continues at offset %(offset)d",
                group=self._group,
                topic=lane.queue.topic,
                queue=lane.queue.queue,
                offset=offset,
            )
            lane.move_to(offset)
            lane.stored = offset

    async def seek(self, lane: Lane, offset: int) -> None:
        """Continue a lane at this offset, and store it. Raises the log's errors, and MembershipLost."""
        if (moving := self._moving.get(lane.queue)) is not None:
            await asyncio.wait([moving])
        if self.lanes.get(lane.queue) is not lane:
            raise _is_elsewhere(lane.queue)
        seeking = self._moving[lane.queue] = asyncio.create_task(self._seek(lane, offset))
        await asyncio.wait([seeking])
        if seeking.cancelled():  # with the membership
            raise _is_elsewhere(lane.queue)
        seeking.result()

    async def _lost(self) -> None:
        """Handle a lost membership: other members own the queues by now.

        Joins again at the next step, once no handler runs.
        """
        lanes = list(self.lanes.values())  # one that was being given back may go meanwhile
        for lane in lanes:
            lane.is_stopping = True
        # Handlers that still run are waited for: joining again at once could hand the same queue to this process twice.
        for lane in lanes:
            await lane.idle.wait()
        self.lanes.clear()
        moving = list(self._moving.values())
        for task in moving:
            task.cancel()
        await asyncio.gather(*moving, return_exceptions=True)
        self._member = None

    # ---- the end

    async def leave(self, timeout_s: float) -> bool:
        """Stop all lanes, wait for their handlers, store offsets and release all queues.

        Returns True if all handlers ended.
        """
        lanes = list(self.lanes.values())
        for lane in lanes:
            lane.is_stopping = True
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                for lane in lanes:
                    await lane.idle.wait()
                if self._moving:
                    await asyncio.wait(self._moving.values())
        for task in list(self._moving.values()):
            task.cancel()
        # A join that is under way on the member's thread sees this at its end, and leaves at once.
        self._has_left = True
        if self._member is not None:
            offsets = {lane.queue: lane.position for lane in self.lanes.values()}
            try:
                await self._ask_member(lambda member: member.leave(offsets))
            except TxmsgError as exc:
                _log.warning(
                    "member.left_unstored",
                    "group %(group)s: left without storing the last offsets: %(error)s",
                    group=self._group,
                    error=exc,
                )
        return all(lane.idle.is_set() for lane in lanes)


class _stopped:  # noqa: N801 - a context manager, used as a function
    """Stop a lane, and wait until its handler has ended; it does not begin again meanwhile."""

    def __init__(self, balance: Balance, lane: Lane) -> None:
        self._balance = balance
        self._lane = lane

    async def __aenter__(self) -> None:
        self._lane.is_stopping = True
        await self._lane.idle.wait()

    async def __aexit__(self, *_: object) -> None:
        balance, lane = self._balance, self._lane
        balance._moving.pop(lane.queue, None)
        if balance.lanes.get(lane.queue) is lane:  # otherwise it was released, with its batches
            lane.is_stopping = False
            balance._on_ready(lane)


def _is_elsewhere(queue: LogQueue) -> MembershipLost:
    return MembershipLost(
        f"topic {queue.topic} queue {queue.queue} is not owned by this member any more: move its group by `txmsg group "
        "seek --log`, which finds its owner"
    )
