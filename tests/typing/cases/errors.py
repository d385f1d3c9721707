"""Errors are classes of one tree, which say on the wire what they are."""

from __future__ import annotations

from typing import assert_type

import txmsg
from txmsg import (
    Produser,  # error: mypy[attr-defined] pyright[reportAttributeAccessIssue,reportUnknownVariableType]
    errors,
)

raised: list[type[errors.TxmsgError]] = [
    errors.BrokerUnavailable,
    errors.CopyDiverged,
    errors.CorruptLog,
    errors.DuplicateId,
    errors.InvalidMessage,
    errors.InvalidName,
    errors.LogBusy,
    errors.MembershipLost,
    errors.MessageTooLarge,
    errors.MirrorDiverged,
    errors.MisuseError,
    errors.NotLeader,
    errors.OffsetOutOfRange,
    errors.OffsetsMissing,
    errors.OutcomeConflict,
    errors.OutcomeExpired,
    errors.OutcomeUnknown,
    errors.Overloaded,
    errors.PermissionDenied,
    errors.ProtocolError,
    errors.SchemaMismatch,
    errors.StorageError,
    errors.TopicClosed,
    errors.TopicExists,
    errors.TransactionRefused,
    errors.Unauthenticated,
    errors.UnknownGroup,
    errors.UnknownTopic,
    errors.UnreadableMessage,
    errors.WrongMessageType,
]
caught: type[errors.TxmsgError] = txmsg.TxmsgError
temporary: type[txmsg.BrokerUnavailable] = txmsg.Overloaded
wrong: type[txmsg.BrokerUnavailable] = txmsg.OutcomeUnknown  # error: mypy[assignment] pyright[reportAssignmentType]
assert_type(txmsg.__version__, str)
txmsg.NoSuchName  # error: mypy[attr-defined] pyright[reportAttributeAccessIssue,reportUnknownMemberType]
Produser()
