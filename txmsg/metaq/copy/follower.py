"""Keeps a copy of a log in sync with its leader: frames on one thread, the state beside them on another.

Two threads, because the second may take long with many groups, while appends at the leader may wait for the first.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from txmsg.errors import (
    BrokerUnavailable,
    CopyDiverged,
    CorruptLog,
    OutcomeUnknown,
    PermissionDenied,
    StorageError,
    TxmsgError,
    Unauthenticated,
)
from txmsg.metaq.copy.beginning import begin_copy
from txmsg.metaq.copy.copier import BeginAgain, Copier
from txmsg.metaq.copy.copy_state import CopyState
from txmsg.metaq.group.logs import CONFIG, GroupLogs
from txmsg.metaq.local import LocalLog
from txmsg.metaq.protocol import ID_SIZE_BYTES
from txmsg.metaq.remote.calls import RemoteServer
from txmsg.metaq.store.log import Log
from txmsg.metaq.store.role import CopyOf, copy_of, forget_fence, write_copy
from txmsg.metaq.store.state import LogIdentity, identity_of
from txmsg.runtime.logs import EventLog
from txmsg.wire.v1 import metaq_pb2 as pb
from txmsg.wire.v1.metaq_rpc import MetaQCopies

_log = EventLog(__name__)

_WAIT_S: Final = 1.0
"""Seconds after which a copy without news asks again: this tells its leader that it is there."""
_BESIDE_S: Final = 1.0
_BESIDE_SHARE: Final = 20
"""Pause after a request of the state, as a multiple of its duration: slow requests are made less often."""
_BACK_OFF_S_MAX: Final = 1.0
_ANSWER_S: Final = 10.0
AGAIN: Final = (BrokerUnavailable, OutcomeUnknown, CorruptLog, StorageError, Unauthenticated, PermissionDenied)
"""Errors that pass without a restart: the leader is away, has damaged frames, or refuses the copy; a disk is full."""


def begin_if_new(server: RemoteServer, root: Path) -> bool:
    """Make the directory of a copy that has nothing yet, or was not begun to the end. Returns False if it is there.

    Raises the errors of a call.
    """
    copy = copy_of(root)
    if (root / "log.json").exists() and (copy is None or copy.is_begun):
        return False
    [(reply, _)] = server.channel.replies_with_data(MetaQCopies.copy, pb.CopyLogRequest(), timeout_s=_ANSWER_S)
    told = BeginAgain(reply.head)
    begin_copy(root, copy or _new_copy(server.address), told.identity, told.position, told.ends)
    _log.info(
        "copy.begun",
        "the copy %(log)s of the log at %(leader)s begins at position %(position)d",
        log=root,
        leader=server.address,
        position=told.position,
    )
    return True


def _new_copy(leader: str) -> CopyOf:
    return CopyOf(leader, secrets.token_bytes(ID_SIZE_BYTES), is_begun=True)


class Follower:
    """Follows the leader with a log that is opened with `follows`. on_frames: called on its thread for new frames.

    name: the copy's name in its leader's lists.
    """

    def __init__(self, server: RemoteServer, log: LocalLog, *, name: str, on_frames: Callable[[], object]) -> None:
        self._server = server
        self._log = log
        self._name = name
        self._on_frames = on_frames
        self._copy = copy_of(log.root)
        copy_id = self._copy.id if self._copy else _new_copy(server.address).id
        self._copier = Copier(server, log.writer, copy_id=copy_id, name=name)
        self._beside = CopyState(log)
        self._closed = threading.Event()
        self.failure: TxmsgError | None = None
        """The reason why it cannot continue, once it has ended by itself."""
        self.begins_again = False
        """True if it has ended because its log must be opened once more, and starts where its leader's begins."""
        self._troubles: dict[str, str] = {}
        self.heard_at = time.monotonic()
        """The time of its leader's last reply, by time.monotonic(); the start time, if there was none."""

    @property
    def trouble(self) -> str:
        """The reason why it makes no progress at the moment; empty if it does."""
        return next(iter(self._troubles.values()), "")

    def silent_s(self) -> float:
        """Return the seconds since its leader's last reply."""
        return time.monotonic() - self.heard_at

    @property
    def behind_bytes(self) -> int:
        """The bytes of the leader's log that the copy had not yet received at the leader's last reply."""
        return max(0, self._copier.leader_end - self._copier.tail.position)

    def close(self) -> None:
        """Ask both threads to stop; does not wait for them."""
        self._closed.set()
        self._server.close()

    # ---- frames

    def run(self) -> None:
        """Copy frames until it is closed, or cannot continue: see `failure` and `begins_again`."""
        beside = threading.Thread(target=self._run_beside, name="txmsg-metaq-beside")
        beside.start()
        try:
            self._repeat("frames", self._take_frames)
        except BeginAgain as told:
            self._begin_again(told)
        except TxmsgError as exc:
            self.failure = self._explained(exc)
        finally:
            self.close()
            beside.join()

    def _repeat(self, what: str, work: Callable[[], None]) -> None:
        """Repeat a step; an error that may pass by itself is logged once, and the step tried again."""
        back_off_s = 0.05
        while not self._closed.is_set():
            try:
                work()
            except AGAIN as exc:
                if self._closed.is_set():
                    return
                if self._troubles.get(what) != str(exc):
                    _log.warning(
                        "copy.waits",
                        "the copy %(log)s gets no %(what)s, and tries again: %(error)s",
                        log=self._log.root,
                        what=what,
                        error=exc,
                    )
                self._troubles[what] = str(exc)
                self._closed.wait(back_off_s)
                back_off_s = min(2 * back_off_s, _BACK_OFF_S_MAX)
            else:
                back_off_s = 0.05
                self._troubles.pop(what, None)

    def _take_frames(self) -> None:
        before = self._copier.tail
        self._copier.run_once(_WAIT_S)
        self.heard_at = time.monotonic()
        if self._copy is None or self._copy.leader != self._server.address:
            self._follow()
        if self._copier.tail != before:
            self._on_frames()

    def _follow(self) -> None:
        """Begin to follow: the leader has what is here. So it can be followed even if this log led before."""
        copy = self._copy or CopyOf(self._server.address, self._copier.copy_id, is_begun=True)
        self._copy = replace(copy, leader=self._server.address)
        write_copy(self._log.root, self._copy)
        # In this order: after a crash in between it is a copy with a fence, which follows as well. Without both it
        # would be a leader.
        forget_fence(self._log.root)

    def _begin_again(self, told: BeginAgain) -> None:
        position = self._copier.tail.position
        if self._copy is None:
            self.failure = self._explained(
                CopyDiverged(f"its leader begins at position {told.position}, and this log ends at {position}")
            )
            return
        _log.warning(
            "copy.begins_again",
            "the copy %(log)s lacks positions %(position)d to %(begin)d, which its leader has deleted: it begins again",
            log=self._log.root,
            position=position,
            begin=told.position,
        )
        # On disk first: a crash while files are deleted leaves a copy that is not begun, and is begun again.
        write_copy(self._log.root, replace(self._copy, is_begun=False))
        self.begins_again = True

    def _explained(self, exc: TxmsgError) -> TxmsgError:
        if not isinstance(exc, CopyDiverged):
            return exc
        root = self._log.root
        return CopyDiverged(
            f"the log {root} has diverged from the one at {self._server.address}: {exc}; to begin a new copy, keep "
            f"what is only here with `mv {root} {root}.diverged`, and run the command again"
        )

    # ---- what stands beside

    def _run_beside(self) -> None:
        try:
            self._repeat("groups", self._take_beside)
        except TxmsgError as exc:
            self.failure = self.failure or exc
            self.close()

    def _take_beside(self) -> None:
        begun_at = time.monotonic()
        if self._copy is not None:  # else the leader has not said yet that this is a copy of its log
            take_beside(self._server, self._log, self._beside, name=self._name)
        # At most a twentieth of the time is spent on the state, however many groups there are.
        self._closed.wait(max(_BESIDE_S, _BESIDE_SHARE * (time.monotonic() - begun_at)))


def take_beside(server: RemoteServer, log: LocalLog, beside: CopyState, *, name: str) -> None:
    """Copy the leader's state beside its frames, and the logs of groups."""
    state = server.channel.call(MetaQCopies.state, pb.LogStateRequest(), timeout_s=_ANSWER_S)
    beside.write_changes(state, lambda told: _copy_group_log(server, log.root, told, name))


def _copy_group_log(server: RemoteServer, root: Path, told: pb.GroupLog, name: str) -> bool:
    """Copy the small log of a group; one that differs from the leader's is copied again from its begin, as no append
    waits.

    Returns False if that is left to the next call.
    """
    path = GroupLogs(root).root_of(told.topic)
    assert path is not None
    if not (path / "log.json").exists() or identity_of(path, create=False).log_id != told.log_id:
        begin_copy(path, None, LogIdentity(told.log_id), 0, {})
    try:
        with Log(path, CONFIG, follows=True) as copied:
            copier = Copier(server, copied, copy_id=b"", name=name, topic=told.topic)
            while copier.tail.position < told.end:
                before = copier.tail.position
                copier.run_once()
                if copier.tail.position == before:
                    break  # the rest of a frame is being written
    except BeginAgain as again:
        begin_copy(path, None, again.identity, again.position, again.ends)
    except CopyDiverged:
        # The small log was deleted and created again, or repaired, at the leader. Its frames are few, so it is copied
        # from its begin.
        begin_copy(path, None, LogIdentity(told.log_id), 0, {})
    else:
        return True
    return False
