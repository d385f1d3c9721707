"""The headers of a message as stored and sent. Needs protobuf only."""

from __future__ import annotations

from collections.abc import Mapping

from google.protobuf.message import DecodeError

from txmsg.errors import ProtocolError
from txmsg.wire.v1 import txmsg_pb2 as pb

__all__ = ["pack_headers", "readable_headers", "unpack_headers"]


def pack_headers(headers: Mapping[str, str]) -> bytes:
    """Return headers as stored and sent; no headers are no bytes. Equal headers give equal bytes."""
    if not headers:
        return b""
    # Deterministic: a map has no order in Protobuf, and equal headers have to give equal bytes.
    return pb.Headers(values=dict(headers)).SerializeToString(deterministic=True)


def readable_headers(data: bytes | None) -> Mapping[str, str]:
    """Return headers for operators, {} if they cannot be read: one message of a foreign client must not hide the
    others."""
    try:
        return unpack_headers(data)
    except ProtocolError:
        return {}


def unpack_headers(data: bytes | None) -> Mapping[str, str]:
    """Return headers from their stored form; the inverse of `pack_headers`. Raises ProtocolError for anything else."""
    if not data:
        return {}
    try:
        return dict(pb.Headers.FromString(data).values)
    except DecodeError as exc:
        raise ProtocolError(f"headers of {len(data)} bytes cannot be read") from exc
