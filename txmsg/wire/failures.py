"""Failures of calls: a server's error as bytes and back, and the errors of calls that no server answered."""

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
"""Characters of an error's text. A text from the other side goes into logs."""


class NoAnswer(Exception):
    """The cause of an error that no server reported: the connection failed, or the time was over."""


def bytes_of_error(error: TxmsgError) -> bytes:
    """Return the payload of an ERROR frame."""
    text = str(error)[:TEXT_LENGTH_MAX].encode(errors="replace").decode()  # a path may hold surrogates
    told = CallError(code=error.code, text=text)
    if isinstance(error, OffsetOutOfRange):
        told.begin, told.end = error.begin, error.end
    elif isinstance(error, CorruptLog):
        told.end = error.next_offset or 0
    return told.SerializeToString()


def error_of_bytes(payload: Buffer, who: str) -> TxmsgError:
    """Return the error in the payload of an ERROR frame; the inverse of `bytes_of_error`. who: its sender."""
    try:
        told = CallError.FromString(bytes(payload))
    except DecodeError:
        return ProtocolError(f"{who} refused the call, and its reason of {len(payload)} bytes cannot be read")
    # Cut and cleaned on this side as well: the text goes into logs and terminals, and the other side may be anything.
    text = printable(told.text[:TEXT_LENGTH_MAX]) or f"{who} gave no text"
    return error_of_told(told.code, text, told.begin, told.end)


def error_of_told(code: str, text: str, begin: int, end: int) -> TxmsgError:
    """Return the exception for an error that a server reported; begin and end are those of OffsetOutOfRange."""
    error = error_of_code(code, text)
    if isinstance(error, OffsetOutOfRange):
        error.begin, error.end = begin, end
    elif isinstance(error, CorruptLog):
        error.next_offset = end or None
    return error


def unreachable(who: str, reason: str) -> BrokerUnavailable:
    """Return the error of a call that was certainly not carried out. who: such as 'broker 10.0.0.1:7700'."""
    error = BrokerUnavailable(f"{who} cannot be reached ({printable(reason)}): check the address and that it runs")
    error.__cause__ = NoAnswer(reason)
    return error


def not_begun(who: str, told: TxmsgError) -> TxmsgError:
    """Return the error of a call that the server did not begin: it `told` this error when it stopped accepting calls.

    A new exception for each call: a shared one would collect the tracebacks of all.
    """
    if isinstance(told, Unauthenticated):
        return Unauthenticated(str(told))
    if isinstance(told, Overloaded):
        error = Overloaded(f"{who} takes no call of this connection: {told}")
        error.__cause__ = NoAnswer(str(told))
        return error
    return unreachable(who, str(told))


def unanswered(who: str, reason: str) -> OutcomeUnknown:
    """Return the error of a call that was sent, and may have been carried out."""
    error = OutcomeUnknown(f"{who} did not answer ({printable(reason)}): the request may have been carried out")
    error.__cause__ = NoAnswer(reason)
    return error


def was_told(error: TxmsgError) -> bool:
    """Return True if a server reported this error; False if it stands for a missing answer."""
    return not isinstance(error.__cause__, NoAnswer)
