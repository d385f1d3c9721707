"""A member of a group whose log is at a server: a session there, which ends if the member is silent."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any

from txmsg.errors import MembershipLost, MisuseError, TxmsgError
from txmsg.metaq.interface import GroupView, LogQueue
from txmsg.metaq.protocol import (
    ID_SIZE_BYTES,
    group_settings_of,
    member_of,
    offsets_of,
    queues_of_sets,
    sets_of_queues,
    wire_offsets,
)
from txmsg.metaq.remote.calls import RemoteServer
from txmsg.runtime.forks import renew_in_children
from txmsg.wire.method import Method, ReplyT
from txmsg.wire.start import Start, start_to_wire
from txmsg.wire.v1 import metaq_pb2 as pb
from txmsg.wire.v1.metaq_rpc import MetaQGroups

_ATTEMPT_S_MIN = 1.0


class RemoteMember:
    """See `GroupMember`. If the server does not answer for as long as a session lasts, the member considers itself
    lost.

    on_left: called when the membership ends.
    """

    def __init__(
        self,
        server: RemoteServer,
        group: str,
        topics: tuple[str, ...],
        *,
        start: Start,
        strategy: str,
        zone: str,
        timeout_s: float,
        session_s: float,
        on_left: Callable[[RemoteMember], object],
    ) -> None:
        self._server = server
        self._timeout_s = timeout_s
        self._session_s = session_s
        self._on_left = on_left
        self._session = os.urandom(ID_SIZE_BYTES)
        self._call = 0
        self._has_left = False
        self._group = group
        request = pb.JoinGroupRequest(
            session=self._session,
            group=group,
            topics=topics,
            start=start_to_wire(start),
            strategy=strategy,
            zone=zone,
            session_ms=round(session_s * 1000),
        )
        self._renewed_at = time.monotonic()
        reply = server.ask_until_answered(
            lambda attempt_s, _: server.channel.call(MetaQGroups.join, request, timeout_s=attempt_s),
            timeout_s=min(timeout_s, session_s),
        )
        self._id: str = reply.member_id
        self._is_copy = False
        renew_in_children(self)

    def _renew(self) -> None:
        self._is_copy = True

    @property
    def id(self) -> str:
        return self._id

    @property
    def group(self) -> str:
        return self._group

    def view(self) -> GroupView:
        reply = self._ask_server(MetaQGroups.view)
        return GroupView(
            tuple(map(member_of, reply.members)),
            tuple(queues_of_sets(reply.queues)),
            {queue: offset or 0 for queue, offset in offsets_of(reply.sought).items()},
            reply.zone,
            group_settings_of(reply.settings),
        )

    def take_queues(self, queues: Collection[LogQueue]) -> dict[LogQueue, int]:
        taken = self._ask_server(MetaQGroups.take, queues=sets_of_queues(queues)).taken
        return {queue: offset or 0 for queue, offset in offsets_of(taken).items()}

    def store(self, offsets: Mapping[LogQueue, int]) -> None:
        self._ask_server(MetaQGroups.store, offsets=wire_offsets(offsets))

    def seek_done(self, offsets: Mapping[LogQueue, int]) -> None:
        self._ask_server(MetaQGroups.seek_done, offsets=wire_offsets(offsets))

    def release(self, offsets: Mapping[LogQueue, int]) -> None:
        self._ask_server(MetaQGroups.release, offsets=wire_offsets(offsets))

    def leave(self, offsets: Mapping[LogQueue, int]) -> None:
        if not self._has_left and not self._is_copy:
            self._ask_server(MetaQGroups.leave, offsets=wire_offsets(offsets))
            self._gone()

    def abandon(self) -> None:
        """Leave if the server answers soon; otherwise the session ends by itself."""
        with suppress(TxmsgError):
            self._timeout_s = min(self._timeout_s, _ATTEMPT_S_MIN)
            self.leave({})
        self._gone()

    def _gone(self) -> None:
        self._has_left = True
        self._on_left(self)

    def _ask_server(self, method: Method[pb.MemberRequest, ReplyT], **content: Any) -> ReplyT:
        """Make one call; it renews the session from its begin, when the server may have received it."""
        if self._is_copy:
            raise MisuseError(
                f"process {os.getpid()} was forked from member {self._id} of group {self._group}, and is not a member "
                "itself: join again"
            )
        # The server may have got the request at its begin. Counting from there, this member gives up before its server
        # gives its queues to others.
        begun_at = time.monotonic()
        left_s = self._renewed_at + self._session_s - begun_at
        if self._has_left or left_s <= 0:
            self._gone()
            raise MembershipLost(
                f"member {self._id} has lost its place in group {self._group}: it left, or had no answer from MetaQ "
                f"server {self._server.address} for {self._session_s:g} s"
            )
        self._call += 1
        request = pb.MemberRequest(session=self._session, call=self._call, **content)
        try:
            reply = self._server.ask_until_answered(
                lambda attempt_s, _: self._server.channel.call(method, request, timeout_s=attempt_s),
                timeout_s=min(self._timeout_s, left_s),
                # A third of the session, so that an answer which is lost leaves time for two more attempts.
                attempt_s=max(_ATTEMPT_S_MIN, self._session_s / 3),
            )
        except MembershipLost:
            self._gone()
            raise
        self._renewed_at = begun_at
        return reply
