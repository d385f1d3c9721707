"""Values <-> bytes of the protocol, and errors <-> gRPC statuses. The one seam between txmsg's words and the wire's."""

from __future__ import annotations

import re
from collections.abc import Iterable
from uuid import UUID

import grpc

from txmsg.errors import (
    BrokerUnavailable,
    CorruptLog,
    DuplicateId,
    InvalidMessage,
    MembershipLost,
    MisuseError,
    OffsetOutOfRange,
    OutcomeConflict,
    OutcomeExpired,
    OutcomeUnknown,
    Overloaded,
    ProtocolError,
    TopicClosed,
    TopicExists,
    TxmsgError,
    UnknownGroup,
    UnknownTopic,
    error_of_code,
    printable,
)
from txmsg.wire.headers import pack_headers, unpack_headers

__all__ = [
    "CHANNEL_OPTIONS",
    "CODE_KEY",
    "MESSAGE_SIZE_BYTES_MAX",
    "REQUEST_ITEMS_MAX",
    "REQUEST_SIZE_BYTES_MAX",
    "bytes_of_ids",
    "details_of",
    "error_of_rpc",
    "error_of_told",
    "ids_of_bytes",
    "metadata_of_error",
    "pack_headers",
    "slices_of_ids",
    "status_of_error",
    "unpack_headers",
]

CODE_KEY = "txmsg-code"
"""Trailing metadata that carries the code of errors.py."""
RANGE_KEY = "txmsg-range"
"""The same for the offsets of OffsetOutOfRange, as BEGIN-END."""

_DETAILS_LENGTH_MAX = 1000
_RANGE = re.compile(r"([0-9]{1,20})-([0-9]{1,20})")

MESSAGE_SIZE_BYTES_MAX = 64 * 1024 * 1024
REQUEST_SIZE_BYTES_MAX = 8 * 1024 * 1024
"""Bodies, keys and headers of one request. A single message may be larger than that only up to its own limit."""
REQUEST_ITEMS_MAX = 4096
"""Messages or transactions of one request; a broker refuses more."""

CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_SIZE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_SIZE_BYTES_MAX),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
)

_ID_SIZE_BYTES = 16


def slices_of_ids(data: bytes) -> list[bytes]:
    """`data` cut into ids of 16 bytes. Raises ProtocolError when it does not divide."""
    if len(data) % _ID_SIZE_BYTES:
        raise ProtocolError(f"{len(data)} bytes of ids are not a multiple of {_ID_SIZE_BYTES}")
    return [data[at : at + _ID_SIZE_BYTES] for at in range(0, len(data), _ID_SIZE_BYTES)]


def ids_of_bytes(data: bytes) -> list[UUID]:
    """The ids in a bytes field."""
    return [UUID(bytes=piece) for piece in slices_of_ids(data)]


def bytes_of_ids(ids: Iterable[UUID]) -> bytes:
    """The inverse of `ids_of_bytes`."""
    return b"".join(each.bytes for each in ids)


_STATUSES: tuple[tuple[type[TxmsgError], grpc.StatusCode], ...] = (
    (Overloaded, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (BrokerUnavailable, grpc.StatusCode.UNAVAILABLE),
    (OutcomeUnknown, grpc.StatusCode.DEADLINE_EXCEEDED),
    (InvalidMessage, grpc.StatusCode.INVALID_ARGUMENT),
    (ProtocolError, grpc.StatusCode.INVALID_ARGUMENT),
    (MisuseError, grpc.StatusCode.FAILED_PRECONDITION),
    (UnknownTopic, grpc.StatusCode.NOT_FOUND),
    (UnknownGroup, grpc.StatusCode.NOT_FOUND),
    (TopicClosed, grpc.StatusCode.FAILED_PRECONDITION),
    (TopicExists, grpc.StatusCode.ALREADY_EXISTS),
    (DuplicateId, grpc.StatusCode.ALREADY_EXISTS),
    (OutcomeConflict, grpc.StatusCode.FAILED_PRECONDITION),
    (OutcomeExpired, grpc.StatusCode.NOT_FOUND),
    (OffsetOutOfRange, grpc.StatusCode.OUT_OF_RANGE),
    (MembershipLost, grpc.StatusCode.NOT_FOUND),
    (CorruptLog, grpc.StatusCode.DATA_LOSS),
)


def status_of_error(error: TxmsgError) -> grpc.StatusCode:
    """The gRPC status that fits an error; the code in the trailing metadata says it exactly."""
    return next((status for kind, status in _STATUSES if isinstance(error, kind)), grpc.StatusCode.INTERNAL)


def metadata_of_error(error: TxmsgError) -> tuple[tuple[str, str], ...]:
    """The trailing metadata that says what `error` is."""
    code = (CODE_KEY, error.code)
    if isinstance(error, OffsetOutOfRange):
        return code, (RANGE_KEY, f"{error.begin}-{error.end}")
    return (code,)


def error_of_told(code: str, text: str, begin: int, end: int) -> TxmsgError:
    """The exception for what a server told; begin and end are those of OffsetOutOfRange."""
    error = error_of_code(code, text)
    if isinstance(error, OffsetOutOfRange):
        error.begin, error.end = begin, end
    elif isinstance(error, CorruptLog):
        error.next_offset = end or None
    return error


def details_of(error: grpc.aio.AioRpcError | grpc.Call) -> str:
    """What whoever is at the other end said of a failed call, which may be anybody, fit for a log."""
    return printable((error.details() or error.code().name)[:_DETAILS_LENGTH_MAX])


def error_of_rpc(error: grpc.RpcError, *, broker: str, kind: str = "broker") -> TxmsgError | None:
    """The txmsg error that a broker answered with, or None when the answer did not come from a broker's service.

    None means the call itself failed (no connection, deadline): what that says of its effect only the caller knows.
    `broker` is the address, `kind` what is there.
    """
    if not isinstance(error, (grpc.aio.AioRpcError, grpc.Call)):
        return None
    said = dict(error.trailing_metadata() or ())
    if CODE_KEY in said:
        text = error.details() or f"{kind} {broker} gave no text"
        kept = _RANGE.fullmatch(str(said.get(RANGE_KEY, ""))) or ("", 0, 0)
        return error_of_told(str(said[CODE_KEY]), text, int(kept[1]), int(kept[2]))
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return ProtocolError(
            f"{kind} {broker} does not know this call ({details_of(error)}): it is of an older release than this "
            f"client, or not a txmsg {kind}; upgrade {kind}s before clients"
        )
    if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
        return ProtocolError(f"{kind} {broker} does not understand the request: {details_of(error)}")
    return None
