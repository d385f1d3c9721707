"""Data after a message: the bytes on the wire equal protobuf's, and received data is not copied."""

from __future__ import annotations

import pytest

from txmsg.errors import ProtocolError
from txmsg.wire.data import pieces_of, split
from txmsg.wire.v1.metaq_pb2 import FetchedFrames, FetchHead, FetchReply

HEADS = [FetchHead(), FetchHead(fetched=[FetchedFrames(at=1, size=2)] * 500)]


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("data", [b"", b"x", bytes(127), bytes(128), bytes(20_000), bytes(3_000_000)])
def test_message_with_data_equals_its_protobuf_encoding(head: FetchHead, data: bytes) -> None:
    pieces = pieces_of(FetchReply(head=head), [data[:7], data[7:]])
    message = b"".join(pieces)
    assert FetchReply.FromString(message) == FetchReply(head=head, data=data)
    without, found = split(message)
    assert FetchReply.FromString(without) == FetchReply(head=head)
    assert found == data
    assert found.obj is message, "it stands where it came"


def test_truncated_or_extended_message_is_refused() -> None:
    message = FetchReply(head=HEADS[1], data=b"data").SerializeToString()
    end = message.index(b"data") - 2
    for size in range(1, len(message)):
        if size != end:
            with pytest.raises(ProtocolError):
                split(message[:size])
    for wrong in (message + b"x", b"\x12\x01x", message[:end] + b"\x18\x01", b"\x0a" + b"\xff" * 30):
        with pytest.raises(ProtocolError):
            split(wrong)


def test_empty_bytes_are_a_message_without_data() -> None:
    head, data = split(b"")
    assert not head
    assert not data
