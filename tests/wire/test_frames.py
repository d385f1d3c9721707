"""Frames have the bytes documented in docs/protocol.md."""

from __future__ import annotations

import pytest

from txmsg.errors import ProtocolError
from txmsg.wire.frames import (
    LAST,
    MORE,
    PART_SIZE_BYTES,
    PREFACE,
    FrameReader,
    WireFrame,
    WireFrameKind,
    call_head,
    frame_of,
    parts_of,
    read_call_head,
)


def test_the_bytes_of_a_connection_are_as_documented() -> None:
    head = call_head(b"Echo/Back", 1500)
    assert PREFACE + frame_of(WireFrameKind.CALL, LAST, 7, head + b"hello") == (
        b"txmsg\x00\x01\n"
        b"\x00\x00\x00\x13"  # the payload has 19 bytes
        b"\x02\x02"  # CALL, LAST
        b"\x00\x00\x00\x07"
        b"\x09\x00\x00\x05\xdcEcho/Backhello"
    )


def test_frames_are_read_for_any_split_of_the_stream() -> None:
    frames = [
        WireFrame(WireFrameKind.PING, 0, 0, b""),
        WireFrame(WireFrameKind.CALL, LAST, 1, b"abc"),
        WireFrame(WireFrameKind.PUSH, 0, 2, bytes(300)),
    ]
    data = PREFACE + b"".join(frame_of(*frame) for frame in frames)
    for size in (1, 2, 7, 11, len(data)):
        reader = FrameReader()
        read = [frame for at in range(0, len(data), size) for frame in reader.feed(data[at : at + size])]
        assert read == frames


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n", b"\x16\x03\x01", b"txmsg\x00\x02\n", b"PRI * HTTP/2.0"])
def test_other_protocol_is_recognised_by_its_first_bytes(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="not as txmsg's protocol does"):
        FrameReader().feed(data)


def test_frame_larger_than_a_part_is_refused_before_it_is_complete() -> None:
    reader = FrameReader()
    reader.feed(PREFACE + frame_of(WireFrameKind.HELLO))
    with pytest.raises(ProtocolError, match="131073 bytes"):
        reader.feed((PART_SIZE_BYTES + 1).to_bytes(4) + b"\x02\x00\x00\x00\x00\x01")


def test_no_more_than_a_greeting_is_buffered_before_authentication() -> None:
    reader = FrameReader()
    reader.feed(PREFACE)
    with pytest.raises(ProtocolError, match="a frame of 4097 bytes: at most 4096"):
        reader.feed((4097).to_bytes(4) + b"\x01\x00\x00\x00\x00\x00")


@pytest.mark.parametrize("size", [0, 1, PART_SIZE_BYTES, PART_SIZE_BYTES + 1, 3 * PART_SIZE_BYTES])
def test_a_message_of_any_size_is_sent_in_parts(size: int) -> None:
    message = bytes(range(256)) * (size // 256) + bytes(size % 256)
    reader = FrameReader()
    reader.feed(PREFACE + frame_of(WireFrameKind.HELLO))
    frames = reader.feed(b"".join(parts_of(WireFrameKind.REPLY, 0, 5, message)))
    assert b"".join(frame.payload for frame in frames) == message
    assert [frame.flags for frame in frames] == [MORE] * (len(frames) - 1) + [0]
    assert all(len(frame.payload) <= PART_SIZE_BYTES for frame in frames)


def test_call_head_has_method_and_timeout() -> None:
    head = call_head(b"Notify/Send", 5_000_000_000)
    assert read_call_head(head + b"request") == ("Notify/Send", 0xFFFFFFFF, len(head))


@pytest.mark.parametrize(
    "payload", [b"", b"\x05\x00\x00\x00", b"\x05\x00\x00\x00\x00abcd", b"\x02\x00\x00\x00\x00\xff\xff"]
)
def test_call_without_a_method_is_refused(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_call_head(payload)
