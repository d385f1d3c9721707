"""A line: the successive polls of one broker, by which it learns which of its replies arrived. Pure."""

from __future__ import annotations

import random

from txmsg.wire.v1.txmsg_pb2 import ReceiveRequest


def _new_id() -> int:
    return random.getrandbits(63) + 1  # 0 is none


class PollSequence:
    """The part of requests that reports the replies before."""

    def __init__(self) -> None:
        self._id = _new_id()
        self._received = 0
        self._named_count = 0

    def name(self, request: ReceiveRequest) -> None:
        """Report the last messages that came. Only while no poll is in progress: its reply may be read next."""
        self._named_count += 1
        request.line, request.received, request.call = self._id, self._received, self._named_count

    def note_received(self, token: int) -> None:
        """Note that messages came, under this token."""
        self._received = token

    def begin_again(self) -> None:
        """Begin a new line, which reports nothing of what came before."""
        self._id, self._received = _new_id(), 0
