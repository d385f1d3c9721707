"""What the groups of a log offer over gRPC: members elsewhere, as sessions, and what people ask and change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final, TypeVar

from txmsg.errors import MisuseError, ProtocolError, shown
from txmsg.message import check_name
from txmsg.metaq.access import GroupMember, LogAccess, LogQueue
from txmsg.metaq.protocol import ID_SIZE_BYTES, offsets_of, queues_of_sets, sets_of_queues, wire_member, wire_offsets
from txmsg.metaq.server.log_api import checked
from txmsg.metaq.server.sessions import Sessions
from txmsg.runtime.start import start_of_wire
from txmsg.wire.answers import Context, answering
from txmsg.wire.v1 import metaq_pb2 as pb
from txmsg.wire.v1.metaq_pb2_grpc import MetaQGroupsServicer

T = TypeVar("T")

TOPICS_MAX: Final = 1000
_STRATEGY_SIZE_MAX = 200


class GroupApi(MetaQGroupsServicer):
    """The service MetaQGroups. `threads`: for what blocks."""

    def __init__(self, log: LogAccess, sessions: Sessions, threads: Executor) -> None:
        self._log = log
        self._sessions = sessions
        self._threads = threads

    async def _do(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    # ---- members

    @answering
    async def Join(self, request: pb.JoinGroupRequest, context: Context) -> pb.JoinGroupReply:  # noqa: N802
        check_name("group", request.group)
        for topic in request.topics:
            check_name("topic", topic)
        if len(request.topics) > TOPICS_MAX or len(request.strategy) > _STRATEGY_SIZE_MAX:
            raise MisuseError(
                f"a member of {len(request.topics)} topics, with a strategy whose name has {len(request.strategy)} "
                f"characters: at most {TOPICS_MAX} and {_STRATEGY_SIZE_MAX} are allowed"
            )
        if len(request.session) != ID_SIZE_BYTES:
            raise ProtocolError(f"a session is named by {ID_SIZE_BYTES} bytes, not {len(request.session)}")
        start = start_of_wire(request.start)

        def join() -> GroupMember:
            return self._log.join(request.group, tuple(request.topics), start=start, strategy=request.strategy)

        member_id = await self._sessions.join(request.session, join, request.session_ms / 1000)
        return pb.JoinGroupReply(member_id=member_id)

    @answering
    async def View(self, request: pb.MemberRequest, context: Context) -> pb.MemberView:  # noqa: N802
        def view(member: GroupMember) -> pb.MemberView:
            found = member.view()
            return pb.MemberView(
                members=map(wire_member, found.members),
                queues=sets_of_queues(found.queues),
                sought=wire_offsets(dict(found.sought)),
            )

        return await self._sessions.call(request.session, request.call, view)

    @answering
    async def Take(self, request: pb.MemberRequest, context: Context) -> pb.MemberReply:  # noqa: N802
        queues = checked(queues_of_sets(request.queues))
        taken = await self._sessions.call(request.session, request.call, lambda member: member.take(queues))
        return pb.MemberReply(taken=wire_offsets(taken))

    @answering
    async def Store(self, request: pb.MemberRequest, context: Context) -> pb.MemberReply:  # noqa: N802
        offsets = _given(request)
        await self._sessions.call(request.session, request.call, lambda member: member.store(offsets))
        return pb.MemberReply()

    @answering
    async def SeekDone(self, request: pb.MemberRequest, context: Context) -> pb.MemberReply:  # noqa: N802
        offsets = _given(request)
        await self._sessions.call(request.session, request.call, lambda member: member.seek_done(offsets))
        return pb.MemberReply()

    @answering
    async def Release(self, request: pb.MemberRequest, context: Context) -> pb.MemberReply:  # noqa: N802
        offsets = _given(request)
        await self._sessions.call(request.session, request.call, lambda member: member.release(offsets))
        return pb.MemberReply()

    @answering
    async def Leave(self, request: pb.MemberRequest, context: Context) -> pb.MemberReply:  # noqa: N802
        offsets = _given(request)
        await self._sessions.leave(request.session, lambda member: member.leave(offsets))
        return pb.MemberReply()

    # ---- for people

    @answering
    async def ListGroups(self, request: pb.ListLogGroupsRequest, context: Context) -> pb.ListLogGroupsReply:  # noqa: N802
        return pb.ListLogGroupsReply(groups=await self._do(self._log.groups))

    @answering
    async def ShowGroup(self, request: pb.ShowLogGroupRequest, context: Context) -> pb.ShowLogGroupReply:  # noqa: N802
        group = check_name("group", request.group)
        found = await self._do(lambda: self._log.group(group))
        reply = pb.ShowLogGroupReply(members=map(wire_member, found.members))
        for state in found.queues:
            reply.queues.add(
                topic=state.queue.topic,
                queue=state.queue.queue,
                owner=state.owner,
                offset=state.offset,
                begin=state.kept.begin,
                end=state.kept.end,
            )
        return reply

    @answering
    async def SeekGroup(self, request: pb.SeekLogGroupRequest, context: Context) -> pb.SeekLogGroupReply:  # noqa: N802
        group, offsets = check_name("group", request.group), _given(request)
        await self._do(lambda: self._log.seek(group, offsets))
        return pb.SeekLogGroupReply()

    @answering
    async def DeleteGroup(self, request: pb.DeleteLogGroupRequest, context: Context) -> pb.DeleteLogGroupReply:  # noqa: N802
        group = check_name("group", request.group)
        await self._do(lambda: self._log.delete_group(group))
        return pb.DeleteLogGroupReply()


def _given(request: pb.MemberRequest | pb.SeekLogGroupRequest) -> dict[LogQueue, int]:
    found: dict[LogQueue, int] = {}
    for queue, offset in offsets_of(request.offsets).items():
        if offset is None or offset < 0:
            raise ProtocolError(f"topic {shown(queue.topic)} queue {queue.queue} cannot go on at offset {offset}")
        found[queue] = offset
    checked(list(found))
    return found
