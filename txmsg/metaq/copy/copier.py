"""Copies one log from its leader, a request at a time: each piece is verified and on disk before the next request.

The next request confirms it to the leader. Blocks; its caller repeats it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from txmsg.errors import CopyDiverged, CorruptLog
from txmsg.metaq.copy.source import CopyTail, tail_of
from txmsg.metaq.format.frame import HEADER_SIZE_BYTES, BadFrame, Header, read_header, verify
from txmsg.metaq.interface import LogQueue
from txmsg.metaq.protocol import offsets_of
from txmsg.metaq.remote.calls import RemoteServer
from txmsg.metaq.store.log import Log
from txmsg.metaq.store.state import LogIdentity
from txmsg.wire.v1 import metaq_pb2 as pb
from txmsg.wire.v1.metaq_rpc import MetaQCopies

_SIZE_BYTES_MAX: Final = 4 * 1024 * 1024
_ANSWER_S: Final = 10.0
_BYTES_PER_S_MIN: Final = 1024 * 1024
_SIZE_AT: Final = 8
_SIZE_END: Final = 12


class BeginAgain(Exception):
    """The copy must start where the leader's log begins: it is empty, or the leader has deleted the files that follow
    it.
    """

    def __init__(self, head: pb.CopyLogHead) -> None:
        super().__init__(f"the leader begins at position {head.position}")
        self.identity = LogIdentity(head.log_id, head.generation)
        self.position = head.position
        self.ends: Mapping[LogQueue, int] = {queue: end or 0 for queue, end in offsets_of(head.ends).items()}


class Copier:
    """Copies a log that is opened with `follows`. topic: of a group's log; empty: the log itself."""

    def __init__(self, server: RemoteServer, log: Log, *, copy_id: bytes, name: str, topic: str = "") -> None:
        self._server = server
        self._log = log
        self._request = pb.CopyLogRequest(copy_id=copy_id, name=name, topic=topic)
        self._size_bytes_max = _SIZE_BYTES_MAX
        self._begin = 0  # the leader's, by its last reply
        self.copy_id = copy_id
        self.tail = tail_of(log.root, log.synced)
        self.leader_end = 0
        """The leader's end in its last reply."""

    def run_once(self, wait_s: float = 0.0) -> None:
        """Request the frames that follow, and append them. Waits up to wait_s for the first of them.

        Raises BeginAgain, CopyDiverged, CorruptLog for frames that are damaged at the leader or on the way,
        StorageError, and the errors of a call.
        """
        log, request = self._log, self._request
        request.log_id, request.generation = log.identity.log_id, log.identity.generation
        request.position, request.last_position, request.last_crc = self.tail
        request.size_bytes_max, request.wait_ms = self._size_bytes_max, round(wait_s * 1000)
        parts: list[memoryview] = []  # of a frame that has not come whole
        needed_bytes = 0
        # Time for the wait, the answer, and the data at the least rate.
        timeout_s = wait_s + _ANSWER_S + request.size_bytes_max / _BYTES_PER_S_MIN
        for reply, data in self._server.channel.replies_with_data(MetaQCopies.copy, request, timeout_s=timeout_s):
            head = reply.head
            self._require_same(head)
            self.leader_end = head.end
            # The leader does not have the position any more: retention has deleted it.
            if not data and head.position != self.tail.position:
                raise BeginAgain(head)
            parts.append(data)
            if sum(map(len, parts)) >= needed_bytes:
                parts, needed_bytes = self._write_frames(head.first, parts)
            self._delete_before(head.begin)
        # A frame that is larger than a request is asked for once more, as a whole.
        self._size_bytes_max = max(_SIZE_BYTES_MAX, needed_bytes)

    def _require_same(self, head: pb.CopyLogHead) -> None:
        identity = self._log.identity
        if head.log_id != identity.log_id:
            raise CopyDiverged(f"the copy is of log {identity.log_id}, and its leader has log {head.log_id}")
        if head.generation < identity.generation:
            raise CopyDiverged(
                f"its leader has generation {head.generation} of the log, and the copy {identity.generation}: a copy "
                "was promoted; follow that one"
            )

    def _write_frames(self, first: int, parts: list[memoryview]) -> tuple[list[memoryview], int]:
        """Write the whole frames of these bytes. Returns the rest, the begin of a frame, and its size if known."""
        data = parts[0] if len(parts) == 1 else memoryview(b"".join(parts))
        headers, size_bytes, needed_bytes = whole_frames(data, self.tail.position, self._log.identity.log_id)
        if headers:
            try:
                # On disk on return, and only then is the tail moved: the next request confirms it to the leader.
                self._log.take_frames(first, data[:size_bytes], headers)
            except BadFrame as exc:
                raise CorruptLog(f"what the leader sent does not follow: {exc}") from exc
            self.tail = CopyTail(headers[-1].end, headers[-1].position, headers[-1].header_crc)
        return [data[size_bytes:]], needed_bytes

    def _delete_before(self, begin: int) -> None:
        """Delete the files that the leader has deleted."""
        if begin > self._begin:
            self._log.delete_old(size_bytes_max=self._log.synced - begin)
            self._begin = begin


def whole_frames(data: memoryview, position: int, log_id: int) -> tuple[list[Header], int, int]:
    """Return the frames that are whole in these bytes of a log, their size in bytes, and the size of the one behind
    them.

    That is 0 if its size is not there. Raises CorruptLog for a frame that is damaged, or not of this place.
    """
    headers: list[Header] = []
    at = needed_bytes = 0
    try:
        while len(data) - at >= _SIZE_END:
            size_bytes = int.from_bytes(data[at + _SIZE_AT : at + _SIZE_END], "little")
            if size_bytes < HEADER_SIZE_BYTES or size_bytes % 8:
                raise BadFrame(f"a frame of {size_bytes} bytes")
            if at + size_bytes > len(data):
                needed_bytes = size_bytes
                break
            frame = data[at : at + size_bytes]
            header = read_header(frame)
            if (header.position, header.log_id) != (position + at, log_id):
                raise BadFrame(f"a frame of log {header.log_id}, written for position {header.position}")
            verify(header, frame)
            headers.append(header)
            at += size_bytes
    except BadFrame as exc:
        raise CorruptLog(f"what the leader sent is damaged at position {position + at}: {exc}") from exc
    return headers, at, needed_bytes
