"""Converts errors to RocketMQ's codes."""

from __future__ import annotations

from txmsg.errors import (
    BrokerUnavailable,
    DuplicateId,
    InvalidMessage,
    MessageTooLarge,
    OutcomeConflict,
    OutcomeExpired,
    OutcomeUnknown,
    Overloaded,
    PermissionDenied,
    TopicClosed,
    TxmsgError,
    Unauthenticated,
    UnknownTopic,
    WrongMessageType,
)
from txmsg.rocketmq.v2 import messaging_pb2 as pb

OK = pb.Status(code=pb.OK, message="OK")

_CODES: dict[type[TxmsgError], pb.Code] = {
    UnknownTopic: pb.TOPIC_NOT_FOUND,
    MessageTooLarge: pb.MESSAGE_BODY_TOO_LARGE,
    WrongMessageType: pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
    InvalidMessage: pb.BAD_REQUEST,
    TopicClosed: pb.FORBIDDEN,
    DuplicateId: pb.ILLEGAL_MESSAGE_ID,
    OutcomeConflict: pb.INVALID_TRANSACTION_ID,
    OutcomeExpired: pb.INVALID_TRANSACTION_ID,
    Overloaded: pb.TOO_MANY_REQUESTS,
    PermissionDenied: pb.FORBIDDEN,
    Unauthenticated: pb.UNAUTHORIZED,
    BrokerUnavailable: pb.HA_NOT_AVAILABLE,
    OutcomeUnknown: pb.HA_NOT_AVAILABLE,
}


class CallRefused(Exception):
    """Raised for a request that cannot be carried out: `code` is for the client, the text for people."""

    def __init__(self, code: pb.Code, text: str) -> None:
        super().__init__(text)
        self.code = code


def status_of(error: CallRefused | TxmsgError) -> pb.Status:
    """Return the status for an error."""
    if isinstance(error, CallRefused):
        return pb.Status(code=error.code, message=str(error))
    code = next((_CODES[kind] for kind in type(error).__mro__ if kind in _CODES), pb.INTERNAL_SERVER_ERROR)
    return pb.Status(code=code, message=str(error))
