"""Decompression of data from others, never to more bytes than the caller allows. All decompression happens here.

The size that the data declares is compared with the allowed one before anything is unpacked or memory is allocated: a
few bytes can claim, and become, gigabytes. Knows no format but those of zstd, LZ4 (frames) and GZIP.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

if TYPE_CHECKING:
    import pyarrow as pa

Codec: TypeAlias = Literal["lz4", "zstd"]

_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_ZSTD_HEADER_SIZE_BYTES_MAX: Final = 18
_SIZES_OF_FIELD: Final = (0, 2, 4, 8)
"""Bytes of the content size in the header of a zstd frame, by its flag; 0 is 1 if the frame is a single segment."""
_SIZES_OF_DICTIONARY: Final = (0, 1, 2, 4)
_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
_LZ4_RATIO_MAX: Final = 255
"""Bytes that one byte of an LZ4 sequence adds, at most."""
_LZ4_BLOCKS_MIN: Final = 16
_LZ4_BLOCK_SIZE_BYTES: Final = 256
"""Content of a block, on average, at least: the search for the end of the frame costs a step for each block."""
_GZIP_WINDOW: Final = 31
_GZIP_MEMBERS_MAX: Final = 64
"""Members of a GZIP text, at most: each costs a copy of the rest; compressing a text makes one."""


class Unpackable(ValueError):
    """Bytes that are not what they are declared to be; the text says why."""


def check_declared(stored: bytes | bytearray | memoryview, size_bytes: int, codec: Codec, *, says_size: bool) -> None:
    """Compare the beginning of compressed data with its declared size. Unpacks nothing.

    says_size: True if a zstd frame must contain its size itself. Raises Unpackable.
    """
    if codec == "lz4":
        # LZ4 frames need not contain their size, so the claim is bounded by the format's best ratio instead.
        if size_bytes > _LZ4_RATIO_MAX * len(stored):
            raise Unpackable(f"{len(stored)} bytes of LZ4 do not become {size_bytes}")
        return
    told = content_size(bytes(stored[:_ZSTD_HEADER_SIZE_BYTES_MAX]))
    if told is None:
        if says_size:
            raise Unpackable("its zstd frame does not say how large its content is: compress it in one call")
    elif told != size_bytes:
        raise Unpackable(f"its zstd frame is of {told} bytes, not of {size_bytes}")


def content_size(frame: bytes) -> int | None:
    """Return the size of a zstd frame's content by its header (RFC 8878, 3.1.1.1); None if the header does not have it.

    Raises Unpackable for what is not a zstd frame, or needs a dictionary.
    """
    if len(frame) < 6 or frame[:4] != _ZSTD_MAGIC:
        raise Unpackable("it does not begin with a zstd frame")
    descriptor = frame[4]
    is_single = bool(descriptor & 0x20)
    if descriptor & 0x08:
        raise Unpackable("its zstd frame has a reserved bit set")
    if descriptor & 0x03:
        raise Unpackable("its zstd frame needs a dictionary")
    size = _SIZES_OF_FIELD[descriptor >> 6] or int(is_single)
    if not size:
        return None
    at = 5 + (0 if is_single else 1)
    field = frame[at : at + size]
    if len(field) < size:
        raise Unpackable("its zstd frame is cut off")
    return int.from_bytes(field, "little") + (256 if size == 2 else 0)


def unpacked(stored: bytes | bytearray | memoryview, size_bytes: int, codec: Codec) -> pa.Buffer:
    """Return the content of compressed data from a log, where its size is recorded. Raises Unpackable."""
    import pyarrow as pa

    check_declared(stored, size_bytes, codec, says_size=False)
    try:
        return pa.decompress(pa.py_buffer(stored), size_bytes, codec=codec)
    except (pa.ArrowException, OSError) as exc:
        raise Unpackable(str(exc)) from exc


def unpacked_of_stranger(stored: bytes | bytearray | memoryview, size_bytes: int, codec: Codec) -> bytes:
    """Return the content of compressed data, if it has exactly this size, and is one frame. Raises Unpackable."""
    import pyarrow as pa

    check_declared(stored, size_bytes, codec, says_size=True)
    if codec == "lz4" and bytes(stored[:4]) != _LZ4_MAGIC:  # such as a skippable frame, before another one
        raise Unpackable("it does not begin with an LZ4 frame")
    try:
        if codec == "zstd":  # in one call: no window is kept, however large a one the frame asks for
            return bytes(pa.decompress(pa.py_buffer(stored), size_bytes, codec=codec, asbytes=True))
        # Not in one call: where less comes than is declared, it leaves the rest as the memory was.
        with pa.CompressedInputStream(pa.BufferReader(stored), codec) as stream:
            raw = bytes(stream.read(size_bytes + 1))
    except (pa.ArrowException, OSError) as exc:
        raise Unpackable(str(exc)) from exc
    if codec == "lz4" and _end_of_lz4(memoryview(stored), size_bytes) != len(stored):
        raise Unpackable("it is more than one frame of LZ4, which readers do not take")
    if len(raw) != size_bytes:
        raise Unpackable(f"it becomes {'more' if len(raw) > size_bytes else len(raw)} bytes, not {size_bytes}")
    return raw


def _end_of_lz4(frame: memoryview, size_bytes: int) -> int:
    """Return the position after a whole LZ4 frame of this content size. Raises Unpackable if it is cut into tiny
    blocks."""
    flags = frame[4]
    at = 7 + (8 if flags & 0x08 else 0) + (4 if flags & 0x01 else 0)
    # Bounded by the content: empty blocks cost a step each and add nothing, so a frame could otherwise be all blocks.
    for _ in range(_LZ4_BLOCKS_MIN + size_bytes // _LZ4_BLOCK_SIZE_BYTES):
        size = int.from_bytes(frame[at : at + 4], "little") & 0x7FFFFFFF  # the first bit: it is not compressed
        at += 4
        if not size:
            return at + (4 if flags & 0x04 else 0)
        at += size + (4 if flags & 0x10 else 0)
    raise Unpackable("it is LZ4 in too many blocks: compress it in one call")


def unzipped(stored: bytes, size_bytes_max: int) -> bytes:
    """Return all members of a GZIP text, joined; size_bytes_max + 1 bytes if it has more. Raises Unpackable."""
    parts, left_bytes, rest = [], size_bytes_max + 1, stored
    for _ in range(_GZIP_MEMBERS_MAX):
        # One object per member: zlib stops at the end of each, while a text of GZIP may be several members, one after
        # the other.
        unzip = zlib.decompressobj(_GZIP_WINDOW)
        try:
            # With max_length, so a bomb stops after one byte too many, whatever it would become.
            part = unzip.decompress(rest, left_bytes)
        except zlib.error as exc:
            raise Unpackable(f"it is not GZIP, as it says: {exc}") from None
        parts.append(part)
        left_bytes -= len(part)
        if not left_bytes:
            return b"".join(parts)
        if not unzip.eof:
            raise Unpackable("it is GZIP that is cut off")
        rest = unzip.unused_data
        if not rest:
            return b"".join(parts)
    raise Unpackable(f"it is GZIP of more than {_GZIP_MEMBERS_MAX} parts: zip it as one")
