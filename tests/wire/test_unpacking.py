"""Hostile bytes for each format: unpacking is bounded, and declared sizes are not trusted."""

from __future__ import annotations

import gzip
import tracemalloc
from collections.abc import Callable

import pyarrow as pa
import pytest

from txmsg.wire.unpacking import Codec, Unpackable, content_size, unpacked, unpacked_of_stranger, unzipped

RAW = b"a line of a log\n" * 1000
MIB = 1024 * 1024


def packed(raw: bytes, codec: Codec) -> bytes:
    return bytes(pa.compress(raw, codec=codec, asbytes=True))


def streamed(raw: bytes) -> bytes:
    """Return a zstd frame without its size, made piece by piece."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(raw)
        stream.flush()
        stream.write(raw)
    return bytes(sink.getvalue().to_pybytes())


def saying(size_bytes: int, *, window: int = 0x48) -> bytes:
    """Return the header of a zstd frame of this size, followed by one empty last block."""
    return b"\x28\xb5\x2f\xfd\xc0" + bytes([window]) + size_bytes.to_bytes(8, "little") + b"\x01\x00\x00"


def behind_skippable(frame: bytes) -> bytes:
    """Return an LZ4 frame after a skippable one, which can be misread as one whose last block ends with the other."""
    content = bytearray(24)  # read as flags: the size of the content is in the header, and blocks have checksums
    content[7:11] = (len(frame) + 5).to_bytes(4, "little")  # the size of the first block, whose header ends at 15
    return b"\x50\x2a\x4d\x18" + len(content).to_bytes(4, "little") + bytes(content) + frame


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
@pytest.mark.parametrize("raw", [b"x" * 300, RAW, bytes(3 * MIB)], ids=["short", "lines", "zeros"])
def test_compressed_data_round_trips(codec: Codec, raw: bytes) -> None:
    stored = packed(raw, codec)
    assert unpacked_of_stranger(stored, len(raw), codec) == raw
    assert unpacked(memoryview(stored), len(raw), codec).to_pybytes() == raw


@pytest.mark.parametrize("size", [1, 255, 256, 65_791, 65_792, 5 * MIB])
def test_frame_header_states_the_unpacked_size(size: int) -> None:
    assert content_size(packed(bytes(size), "zstd")[:18]) == size


@pytest.mark.parametrize(
    ("stored", "size_bytes", "codec"),
    [
        pytest.param(packed(RAW, "zstd"), len(RAW) - 1, "zstd", id="more than declared"),
        pytest.param(packed(RAW, "zstd"), len(RAW) + 1, "zstd", id="less than declared"),
        pytest.param(packed(RAW, "lz4"), len(RAW) - 1, "lz4", id="more LZ4 than declared"),
        pytest.param(packed(RAW, "lz4"), len(RAW) + 1, "lz4", id="less LZ4 than declared"),
        pytest.param(packed(RAW, "zstd") * 2, len(RAW), "zstd", id="two frames of one's size"),
        pytest.param(packed(RAW, "zstd") * 2, 2 * len(RAW), "zstd", id="two frames"),
        pytest.param(packed(RAW, "lz4") * 2, 2 * len(RAW), "lz4", id="two frames of LZ4"),
        pytest.param(
            packed(RAW, "zstd") + packed(bytes(64 * MIB), "zstd"), len(RAW), "zstd", id="a second frame that swells"
        ),
        pytest.param(streamed(RAW), 2 * len(RAW), "zstd", id="no content size"),
        pytest.param(saying(2**63), 2**32 - 1, "zstd", id="a content size of 2^63"),
        pytest.param(saying(64 * MIB), 64 * MIB, "zstd", id="a content size that does not come"),
        pytest.param(saying(1000, window=0xFF), 1000, "zstd", id="a window of 4 TiB"),
        pytest.param(b"\x50\x2a\x4d\x18\x04\0\0\0abcd" + packed(RAW, "zstd"), len(RAW), "zstd", id="skippable first"),
        pytest.param(packed(RAW, "zstd")[:-1], len(RAW), "zstd", id="cut off"),
        pytest.param(packed(RAW, "lz4")[:-1], len(RAW), "lz4", id="LZ4 cut off"),
        pytest.param(packed(bytes(100), "lz4"), 2**32 - 1, "lz4", id="LZ4 that cannot become so much"),
        pytest.param(behind_skippable(packed(RAW, "lz4")), len(RAW), "lz4", id="skippable LZ4 first"),
        pytest.param(b"\x28\xb5\x2f\xfd\x03\x00\x00\x00\x00\x00", 10, "zstd", id="a dictionary"),
        pytest.param(b"", 10, "zstd", id="nothing"),
        pytest.param(b"", 10, "lz4", id="no LZ4"),
    ],
)
def test_hostile_frames_are_refused(stored: bytes, size_bytes: int, codec: Codec) -> None:
    with pytest.raises(Unpackable):
        unpacked_of_stranger(stored, size_bytes, codec)


@pytest.mark.parametrize("unpack", [unpacked, unpacked_of_stranger])
def test_frame_that_contradicts_its_declared_size_is_not_unpacked(unpack: Callable[..., object]) -> None:
    stored = packed(bytes(64 * MIB), "zstd")
    before_bytes = pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        for size_bytes in (1000, 2**32 - 1):
            with pytest.raises(Unpackable, match=f"{64 * MIB} bytes"):
                unpack(stored, size_bytes, "zstd")
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()
    assert pa.total_allocated_bytes() == before_bytes


def test_frame_without_a_declared_size_is_limited_by_the_size_in_the_log() -> None:
    assert unpacked(streamed(RAW), 2 * len(RAW), "zstd").to_pybytes() == 2 * RAW
    with pytest.raises(Unpackable):
        unpacked(streamed(RAW), len(RAW), "zstd")


@pytest.mark.parametrize("members", [1, 2, 64])
def test_gzip_unpacking_stops_one_byte_above_the_limit(members: int) -> None:
    stored = gzip.compress(bytes(4 * MIB)) * members
    assert len(unzipped(stored, MIB)) == MIB + 1
    assert len(unzipped(gzip.compress(b"a") * members, members)) == members


@pytest.mark.parametrize(
    "stored",
    [b"", b"x", gzip.compress(RAW)[:-1], gzip.compress(b"") * 65, gzip.compress(RAW) + b"x"],
    ids=["nothing", "another format", "cut", "too many members", "more behind it"],  # gzip holds the time
)
def test_incomplete_gzip_is_refused(stored: bytes) -> None:
    with pytest.raises(Unpackable):
        unzipped(stored, MIB)
