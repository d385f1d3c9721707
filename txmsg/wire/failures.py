"""How a call fails: what the server told, as bytes and back; and what a caller is told where no server did."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from txmsg.errors import (
    BrokerUnavailable,
    CorruptLog,
    OffsetOutOfRange,
    OutcomeUnknown,
    Overloaded,
    ProtocolError,
    TxmsgError,
    Unauthenticated,
    error_of_code,
    printable,
)
from txmsg.wire.frames import Buffer
from txmsg.wire.v1.wire_pb2 import CallError

TEXT_LENGTH_MAX = 1000
"""Of an error. What somebody at the other end says goes into logs."""


class NoAnswer(Exception):
    """The cause of an error that no server told: the connection failed, or the time was over."""


def bytes_of_error(error: TxmsgError) -> bytes:
    """The payload of an ERROR."""
    text = str(error)[:TEXT_LENGTH_MAX].encode(errors="replace").decode()  # a path may hold surrogates
    told = CallError(code=error.code, text=text)
    if isinstance(error, OffsetOutOfRange):
        told.begin, told.end = error.begin, error.end
    elif isinstance(error, CorruptLog):
        told.end = error.next_offset or 0
    return told.SerializeToString()


def error_of_bytes(payload: Buffer, who: str) -> TxmsgError:
    """The inverse; `who` told it."""
    try:
        told = CallError.FromString(bytes(payload))
    except DecodeError:
        return ProtocolError(f"{who} refused the call, and its reason of {len(payload)} bytes cannot be read")
    text = printable(told.text[:TEXT_LENGTH_MAX]) or f"{who} gave no text"
    return error_of_told(told.code, text, told.begin, told.end)


def error_of_told(code: str, text: str, begin: int, end: int) -> TxmsgError:
    """The exception for what a server told; begin and end are those of OffsetOutOfRange."""
    error = error_of_code(code, text)
    if isinstance(error, OffsetOutOfRange):
        error.begin, error.end = begin, end
    elif isinstance(error, CorruptLog):
        error.next_offset = end or None
    return error


def unreachable(who: str, reason: str) -> BrokerUnavailable:
    """The error of a call that was certainly not carried out. `who`: as 'broker 10.0.0.1:7700'."""
    error = BrokerUnavailable(f"{who} cannot be reached ({printable(reason)}): check the address and that it runs")
    error.__cause__ = NoAnswer(reason)
    return error


def not_begun(who: str, told: TxmsgError) -> TxmsgError:
    """The error of a call that the server did not begin, as it `told` when it took no more. Each call has its own."""
    if isinstance(told, Unauthenticated):
        return Unauthenticated(str(told))
    if isinstance(told, Overloaded):
        error = Overloaded(f"{who} takes no call of this connection: {told}")
        error.__cause__ = NoAnswer(str(told))
        return error
    return unreachable(who, str(told))


def unanswered(who: str, reason: str) -> OutcomeUnknown:
    """The error of a call that was sent, and may have been carried out."""
    error = OutcomeUnknown(f"{who} did not answer ({printable(reason)}): the request may have been carried out")
    error.__cause__ = NoAnswer(reason)
    return error


def was_told(error: TxmsgError) -> bool:
    """Whether a server said so, and not the connection for want of an answer."""
    return not isinstance(error.__cause__, NoAnswer)
