"""The calls of a log's copies: bytes by position, the state beside them, and the fence."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from txmsg.errors import BrokerUnavailable, CopyDiverged, CorruptLog, MisuseError, OutcomeUnknown, ProtocolError
from txmsg.message import check_name
from txmsg.metaq.copy.copies import Copies
from txmsg.metaq.copy.copy_state import state_of
from txmsg.metaq.copy.source import CopyTail, FilePiece, read_piece
from txmsg.metaq.group.logs import GroupLogs
from txmsg.metaq.local import LocalLog
from txmsg.metaq.protocol import ID_SIZE_BYTES, PIECE_SIZE_BYTES, wire_offsets
from txmsg.metaq.server.transfers import Transfers
from txmsg.metaq.store.commit_log import CommitLogReader
from txmsg.metaq.store.state import LogIdentity, identity_of
from txmsg.runtime.logs import EventLog
from txmsg.wire.changes import change_of
from txmsg.wire.server_call import ServerCall
from txmsg.wire.v1 import metaq_pb2 as pb

T = TypeVar("T")

_log = EventLog(__name__)

_NAME_SIZE_MAX: Final = 200
_SIZE_BYTES_MAX: Final = 512 * 1024 * 1024
_WAIT_S_MAX: Final = 60.0
_LOOK_S: Final = 0.1
"""Seconds between two checks: appends of timed topics reach the disk without a call's end."""


class CopyApi:
    """The service MetaQCopies. `readers`: threads that read. sending: bounds bytes on their way, together with
    fetches.
    """

    def __init__(  # noqa: PLR0917 - what a server is made of
        self,
        log: LocalLog,
        copies: Copies,
        readers: Executor,
        sending: Transfers,
        send_timeout_s: float,
        stop: asyncio.Event,
    ) -> None:
        self._log = log
        self._writer = log.writer
        self._group_logs = GroupLogs(log.root)
        self._copies = copies
        self._readers = readers
        self._sending = sending
        self._send_timeout_s = send_timeout_s
        self._stop = stop
        self._waiting: set[asyncio.Event] = set()

    def wake(self) -> None:
        """Wake waiting copies: something was appended, or came from the leader of a copy; or the server stops."""
        for grown in self._waiting:
            grown.set()

    async def _read(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._readers, work)

    # ---- frames

    async def copy(self, request: pb.CopyLogRequest, call: ServerCall[pb.CopyLogRequest, pb.CopyLogReply]) -> None:
        """Send frames to a copy: waits on the loop, reads on a thread.

        The next piece is read only when the one before is leaving.
        """
        root, identity, end = await self._read(partial(self._source, request.topic))
        tail = _tail_asked_for(request, identity)
        piece_bytes = min(request.size_bytes_max, PIECE_SIZE_BYTES)
        piece = await self._read(partial(read_piece, root, tail, end, piece_bytes))
        if tail is not None and not request.topic:
            # The request itself confirms the position. It counts only after `read_piece` has found the copy's last
            # frame in this log.
            self._heard(request, piece)
            if not piece.data and piece.position == tail.position and request.wait_ms:
                end = await self._grown(end, min(request.wait_ms / 1000, _WAIT_S_MAX))
                # Its end was found to be in this log, which only grows.
                piece = await self._read(partial(read_piece, root, CopyTail(tail.position), end, piece_bytes))
        left_bytes = min(request.size_bytes_max, _SIZE_BYTES_MAX)
        with self._sending.begun(call.connection) as transfer:
            while True:
                # Copies share the room of fetches, so that a copy which catches up does not take the memory of readers.
                await self._sending.hold_bytes(transfer, len(piece.data))
                try:
                    async with transfer.step():
                        await call.send_reply(_reply(identity, end, piece), [piece.data] if piece.data else [])
                except TimeoutError:
                    raise OutcomeUnknown(
                        f"a copy took what it asked for too slowly: {self._send_timeout_s:g} s for a piece are "
                        "allowed; ask again"
                    ) from None
                transfer.moved_bytes += len(piece.data)
                left_bytes -= len(piece.data)
                at = piece.position + len(piece.data)
                if not piece.data or left_bytes <= 0 or at >= end:
                    return
                try:
                    piece = await self._read(
                        partial(read_piece, root, CopyTail(at), end, min(left_bytes, PIECE_SIZE_BYTES))
                    )
                except CorruptLog as exc:
                    raise BrokerUnavailable(f"the data was deleted while it was being sent: ask again ({exc})") from exc

    def _source(self, topic: str) -> tuple[Path, LogIdentity, int]:
        """Return the directory of a log, its identity, and the position up to which it may be copied."""
        root = self._group_logs.root_of(check_name("topic", topic)) if topic else None
        if root is None:
            if topic:
                raise MisuseError(f"topic {topic} is not one of a group, which has a log of its own")
            # Only what is on this disk is sent: a copy is never ahead of its leader after a power cut (decision 0075).
            return self._log.root, self._writer.identity, self._writer.synced
        return root, identity_of(root, create=False), CommitLogReader(root / "commitlog").end_position()

    def _heard(self, request: pb.CopyLogRequest, piece: FilePiece) -> None:
        """Record the copy's progress, which counts only now: its end was found to be in this log."""
        if len(request.copy_id) != ID_SIZE_BYTES or len(request.name) > _NAME_SIZE_MAX:
            raise ProtocolError(f"a copy has an id of {ID_SIZE_BYTES} bytes, and a name of at most {_NAME_SIZE_MAX}")
        if piece.position == request.position:
            self._copies.heard(request.copy_id, request.name, request.position)
        else:
            self._copies.forget_copy(request.copy_id)

    async def _grown(self, end: int, wait_s: float) -> int:
        """Return the log's end on disk, as soon as it has grown, or after the wait."""
        grown = asyncio.Event()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        self._waiting.add(grown)
        try:
            while self._writer.synced == end and (left_s := deadline - loop.time()) > 0:
                if self._stop.is_set():
                    raise BrokerUnavailable("this MetaQ server is stopping: ask again when it is back")
                # Cleared before the wait and after the check: growth in between sets it again.
                grown.clear()
                try:
                    async with asyncio.timeout(min(left_s, _LOOK_S)):
                        await grown.wait()
                except TimeoutError:
                    continue
            return self._writer.synced
        finally:
            self._waiting.discard(grown)

    # ---- what stands beside

    async def state(self, request: pb.LogStateRequest) -> pb.LogStateReply:
        return await self._read(partial(state_of, self._log))

    async def fence(self, request: pb.FenceLogRequest) -> pb.FenceLogReply:
        identity = self._writer.identity
        if request.log_id != identity.log_id:
            raise MisuseError(f"the log here is {identity.log_id}, not {request.log_id}: it was not fenced")
        end = await self._read(partial(self._writer.fence, request.generation, request.copy_id))
        self.wake()
        _log.warning(
            "log.fenced",
            "the log %(log)s refuses appends from now on: a copy continues as generation %(generation)d",
            log=self._log.root,
            generation=request.generation,
        )
        change_of("log.fence", str(self._log.root), after={"generation": request.generation}).log_change()
        return pb.FenceLogReply(end=end)


def _tail_asked_for(request: pb.CopyLogRequest, identity: LogIdentity) -> CopyTail | None:
    """Return the end of the copy; None if it has nothing. Raises CopyDiverged if it is not a copy of this log."""
    if not request.log_id:
        return None
    if request.log_id != identity.log_id:
        raise CopyDiverged(f"the copy is of log {request.log_id}, and its leader has log {identity.log_id}")
    if request.generation > identity.generation:
        raise CopyDiverged(
            f"its leader has generation {identity.generation} of the log, and the copy {request.generation}: a copy "
            "was promoted; follow that one"
        )
    return CopyTail(request.position, request.last_position, request.last_crc)


def _reply(identity: LogIdentity, end: int, piece: FilePiece) -> pb.CopyLogReply:
    return pb.CopyLogReply(
        head=pb.CopyLogHead(
            log_id=identity.log_id,
            generation=identity.generation,
            begin=piece.begin,
            end=end,
            first=piece.first,
            position=piece.position,
            ends=wire_offsets({**piece.ends}),
        )
    )
