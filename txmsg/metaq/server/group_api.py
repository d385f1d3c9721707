"""The calls for groups of a log: members on other machines, as sessions, and the administration of groups."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import asdict
from typing import Any, Final, TypeVar

from txmsg.errors import MembershipLost, MisuseError, ProtocolError, shown
from txmsg.message import check_name
from txmsg.metaq.interface import GroupMember, LogAccess, LogQueue
from txmsg.metaq.protocol import (
    ID_SIZE_BYTES,
    offsets_of,
    queues_of_sets,
    sets_of_queues,
    wire_group_settings,
    wire_member,
    wire_offsets,
)
from txmsg.metaq.server.log_api import checked
from txmsg.metaq.server.sessions import MemberSessions
from txmsg.wire.access.permissions import DESCRIBE_GROUP, RECEIVE_GROUP
from txmsg.wire.caller import current_caller, may, require
from txmsg.wire.changes import change_of
from txmsg.wire.start import start_of_wire
from txmsg.wire.v1 import metaq_pb2 as pb

T = TypeVar("T")

TOPICS_MAX: Final = 1000
_STRATEGY_SIZE_MAX = 200


class GroupApi:
    """The service MetaQGroups. `threads`: for calls that block."""

    def __init__(self, log: LogAccess, sessions: MemberSessions, threads: Executor) -> None:
        self._log = log
        self._sessions = sessions
        self._threads = threads

    async def _do(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    # ---- members

    async def join(self, request: pb.JoinGroupRequest) -> pb.JoinGroupReply:
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
            return self._log.join(
                request.group, tuple(request.topics), start=start, strategy=request.strategy, zone=request.zone
            )

        member_id = await self._sessions.join(
            request.session, join, request.session_ms / 1000, owner=current_caller().name
        )
        return pb.JoinGroupReply(member_id=member_id)

    async def _call(self, request: pb.MemberRequest, work: Callable[[GroupMember], T]) -> T:
        self._require_own(request)
        return await self._sessions.call(request.session, request.call, work)

    def _require_own(self, request: pb.MemberRequest) -> None:
        """Require that a session belongs to the caller that joined, which may still receive as its group."""
        require(RECEIVE_GROUP, self._sessions.group_of(request.session, current_caller().name))

    async def view(self, request: pb.MemberRequest) -> pb.MemberView:
        def view(member: GroupMember) -> pb.MemberView:
            found = member.view()
            return pb.MemberView(
                members=map(wire_member, found.members),
                queues=sets_of_queues(found.queues),
                sought=wire_offsets(dict(found.sought)),
                zone=found.zone,
                settings=wire_group_settings(found.settings),
            )

        return await self._call(request, view)

    async def take(self, request: pb.MemberRequest) -> pb.MemberReply:
        queues = checked(queues_of_sets(request.queues))
        taken = await self._call(request, lambda member: member.take_queues(queues))
        return pb.MemberReply(taken=wire_offsets(taken))

    async def store(self, request: pb.MemberRequest) -> pb.MemberReply:
        offsets = _given(request)
        await self._call(request, lambda member: member.store(offsets))
        return pb.MemberReply()

    async def seek_done(self, request: pb.MemberRequest) -> pb.MemberReply:
        offsets = _given(request)
        await self._call(request, lambda member: member.seek_done(offsets))
        return pb.MemberReply()

    async def release(self, request: pb.MemberRequest) -> pb.MemberReply:
        offsets = _given(request)
        await self._call(request, lambda member: member.release(offsets))
        return pb.MemberReply()

    async def leave(self, request: pb.MemberRequest) -> pb.MemberReply:
        offsets = _given(request)
        try:
            self._require_own(request)
        except MembershipLost:
            return pb.MemberReply()  # leaving twice is fine
        await self._sessions.leave(request.session, lambda member: member.leave(offsets))
        return pb.MemberReply()

    # ---- for people

    async def list_groups(self, request: pb.ListLogGroupsRequest) -> pb.ListLogGroupsReply:
        groups = await self._do(self._log.groups)
        return pb.ListLogGroupsReply(groups=[group for group in groups if may(DESCRIBE_GROUP, group)])

    async def show_group(self, request: pb.ShowLogGroupRequest) -> pb.ShowLogGroupReply:
        group = check_name("group", request.group)
        found = await self._do(lambda: self._log.group(group))
        reply = pb.ShowLogGroupReply(
            members=map(wire_member, found.members), settings=wire_group_settings(found.settings)
        )
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

    async def seek_group(self, request: pb.SeekLogGroupRequest) -> pb.SeekLogGroupReply:
        group, offsets = check_name("group", request.group), _given(request)
        await self._do(lambda: self._log.seek(group, offsets))
        change_of("log_group.seek", group, after={f"{q.topic} {q.queue}": to for q, to in offsets.items()}).log_change()
        return pb.SeekLogGroupReply()

    async def alter_group(self, request: pb.AlterLogGroupRequest) -> pb.LogGroupSettings:
        group = check_name("group", request.group)
        change: dict[str, Any] = {
            name: getattr(request, name) for name in ("stopped", "concurrency", "rate_per_s") if request.HasField(name)
        }
        settings = await self._do(lambda: self._log.alter_group(group, **change))
        change_of("log_group.alter", group, after=asdict(settings)).log_change()
        return wire_group_settings(settings)

    async def delete_group(self, request: pb.DeleteLogGroupRequest) -> pb.DeleteLogGroupReply:
        group = check_name("group", request.group)
        await self._do(lambda: self._log.delete_group(group))
        change_of("log_group.delete", group).log_change()
        return pb.DeleteLogGroupReply()


def _given(request: pb.MemberRequest | pb.SeekLogGroupRequest) -> dict[LogQueue, int]:
    found: dict[LogQueue, int] = {}
    for queue, offset in offsets_of(request.offsets).items():
        if offset is None or offset < 0:
            raise ProtocolError(f"topic {shown(queue.topic)} queue {queue.queue} cannot go on at offset {offset}")
        found[queue] = offset
    checked(list(found))
    return found
