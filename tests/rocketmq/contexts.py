"""Calls of RocketMQ clients without a connection."""

from __future__ import annotations

from collections.abc import Mapping

from txmsg.rocketmq.grpc.call import GrpcCall
from txmsg.rocketmq.grpc.framing import Code

_SIZE_BYTES_MAX = 8 * 1024 * 1024


class NoStream:
    """A stream whose client neither reads nor sends."""

    peer = "127.0.0.1:4711"

    async def send_data(self, data: bytes) -> None: ...

    def end_call(self, code: Code, text: str) -> None: ...

    def allow(self, size_bytes: int) -> None: ...

    def count_bytes(self, size_bytes: int) -> bool:
        return True

    def admitted(self, user: str, *, is_admin: bool) -> None: ...


def call_with(headers: Mapping[str, str]) -> GrpcCall:
    """Return a call of which only the headers matter."""
    return GrpcCall(NoStream(), headers, size_bytes_max=_SIZE_BYTES_MAX)


class AnsweredCall(GrpcCall):
    """A call whose messages are read and written by the test."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        super().__init__(NoStream(), headers, size_bytes_max=_SIZE_BYTES_MAX)
