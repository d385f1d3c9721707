"""Members of groups on other machines: each is a session, for which this process is a member itself.

A session that is silent for its time ends: its member leaves, and its later calls are refused, so a process that was
paused stores nothing over what others did meanwhile. When this process was paused, no session could be renewed, and the
time does not count.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Final, TypeVar

from txmsg.errors import MembershipLost, MisuseError, Overloaded, ProtocolError, TxmsgError
from txmsg.metaq.interface import GroupMember
from txmsg.runtime.logs import EventLog

_log = EventLog(__name__)

T = TypeVar("T")

SESSION_S_MIN: Final = 1.0
SESSION_S_MAX: Final = 300.0
SESSIONS_MAX: Final = 10_000
_LOOK_S = 0.25


@dataclass(slots=True, eq=False)
class _Session:
    member: GroupMember
    owner: str
    session_s: float
    ends_at: float
    one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)
    last_call: int = 0
    last_answer: object = None


class MemberSessions:
    """The sessions of one server. Belongs to one loop. Calls of members block, so `threads` run them."""

    def __init__(self, threads: Executor, *, clock: Callable[[], float]) -> None:
        self._threads = threads
        self._clock = clock
        self._sessions: dict[bytes, _Session] = {}
        self._joining: dict[bytes, asyncio.Future[GroupMember]] = {}
        self._looked_at = clock()

    def __len__(self) -> int:
        return len(self._sessions)

    async def join(self, session: bytes, join: Callable[[], GroupMember], session_s: float, *, owner: str = "") -> str:
        """Create a member, and return its id. A repeat finds the one that it created before.

        owner: its only allowed user.
        """
        if not SESSION_S_MIN <= session_s <= SESSION_S_MAX:
            raise MisuseError(f"a session of {session_s:g} s: {SESSION_S_MIN:g} to {SESSION_S_MAX:g} are allowed")
        known = self._sessions.get(session)
        if known is None:
            if len(self._sessions) + len(self._joining) >= SESSIONS_MAX:
                raise Overloaded(f"the server has {SESSIONS_MAX} group members already; try again later")
            joining = self._joining.get(session)
            if joining is None:
                joining = asyncio.ensure_future(self._in_thread(join))
                self._joining[session] = joining
                # Shielded, and finished in a callback: a member that exists without a session would own its queues
                # until this process ends.
                joining.add_done_callback(lambda done: self._joined(session, owner, session_s, done))
            await asyncio.shield(joining)
        return self._of(session, owner).member.id

    def _of(self, session: bytes, owner: str) -> _Session:
        """Return a session. Raises MembershipLost if there is none, or it belongs to another owner."""
        known = self._sessions.get(session)
        if known is None or known.owner != owner:
            raise _lost()
        return known

    def _joined(self, session: bytes, owner: str, session_s: float, done: asyncio.Future[GroupMember]) -> None:
        """Add the session of a member that has joined. Its caller may be gone: then it is not renewed, and ends."""
        del self._joining[session]
        if not done.cancelled() and done.exception() is None:
            self._sessions[session] = _Session(done.result(), owner, session_s, self._clock() + session_s)

    def group_of(self, session: bytes, owner: str = "") -> str:
        """Return the group of a member. Raises MembershipLost when there is no such session."""
        return self._of(session, owner).member.group

    async def call(self, session: bytes, number: int, work: Callable[[GroupMember], T]) -> T:
        """Return the result of this call on a member's thread; the same result for a repeat of the last one.

        A caller that is cancelled does not end it: the result of a call that a thread has begun is there when it is
        repeated. Raises MembershipLost when there is no such session.
        """
        known = self._sessions.get(session)
        if known is None:
            raise _lost()
        # Renewed when the call arrives, and again when it ends: a call that waits for a disk must not end its own
        # session.
        known.ends_at = self._clock() + known.session_s
        return await _to_its_end(self._call(known, session, number, work))

    async def _call(self, known: _Session, session: bytes, number: int, work: Callable[[GroupMember], T]) -> T:
        async with known.one_at_a_time:
            if self._sessions.get(session) is not known:
                raise _lost()
            # A repeat after a lost answer: `take_queues` done twice would return other queues than the first time.
            if number == known.last_call:
                return known.last_answer  # type: ignore[return-value]  # what the same call returned before
            if number < known.last_call:
                raise ProtocolError(f"call {number} of a member comes after its call {known.last_call}")
            answer = await self._in_thread(lambda: work(known.member))
            known.last_call, known.last_answer = number, answer
            known.ends_at = self._clock() + known.session_s
            return answer

    async def leave(self, session: bytes, work: Callable[[GroupMember], None]) -> None:
        """Store the member's offsets and leave. Leaving twice is fine."""
        await _to_its_end(self._leave(session, work))

    async def _leave(self, session: bytes, work: Callable[[GroupMember], None]) -> None:
        known = self._sessions.pop(session, None)
        if known is None:
            return
        try:
            async with known.one_at_a_time:
                await self._in_thread(lambda: work(known.member))
        except BaseException:
            self._sessions[session] = known  # it still owns its queues: it is ended later
            raise

    async def run(self) -> None:
        """End silent sessions, until it is cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            await self.end_silent()

    async def end_silent(self) -> None:
        """End the sessions that are silent now."""
        now = self._clock()
        # If this process was paused, no session could be renewed, so all get the time back.
        stood_still_s, self._looked_at = now - self._looked_at - _LOOK_S, now
        if stood_still_s > _LOOK_S:
            for session in self._sessions.values():
                session.ends_at += stood_still_s
        for name, session in list(self._sessions.items()):
            # A session with a call under way is not silent, however long the call takes.
            if session.ends_at <= now and not session.one_at_a_time.locked():
                _log.warning(
                    "member.silent",
                    "member %(member)s of group %(group)s said nothing for %(session_s)g s: its queues go to others",
                    member=session.member.id,
                    group=session.member.group,
                    session_s=session.session_s,
                )
                await self._end_session(name)

    async def close(self) -> None:
        """End all sessions."""
        for name in list(self._sessions):
            await self._end_session(name)

    async def _end_session(self, name: bytes) -> None:
        try:
            await self.leave(name, lambda member: member.leave({}))
        except TxmsgError:
            _log.exception("member.leave_failed", "a member could not leave its group")

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


async def _to_its_end(work: Coroutine[object, object, T]) -> T:
    """Return the result of this, or raise its error; it continues when its caller is cancelled."""
    task = asyncio.ensure_future(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())  # retrieved even without caller
    return await asyncio.shield(task)


def _lost() -> MembershipLost:
    return MembershipLost("the server does not know this member: it was silent for too long, or has left")
