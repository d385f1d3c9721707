"""Errors form one class tree, and each has its code on the wire."""

from __future__ import annotations

from typing import assert_type

import txmsg.errors
from txmsg import Produser  # error: mypy[attr-defined] pyright[reportAttributeAccessIssue,reportUnknownVariableType]

raised: list[type[txmsg.errors.TxmsgError]] = [
    txmsg.errors.BrokerUnavailable,
    txmsg.errors.CopyDiverged,
    txmsg.errors.CorruptLog,
    txmsg.errors.DuplicateId,
    txmsg.errors.InvalidMessage,
    txmsg.errors.InvalidName,
    txmsg.errors.LogBusy,
    txmsg.errors.MembershipLost,
    txmsg.errors.MessageTooLarge,
    txmsg.errors.MirrorDiverged,
    txmsg.errors.MisuseError,
    txmsg.errors.NotLeader,
    txmsg.errors.OffsetOutOfRange,
    txmsg.errors.OffsetsMissing,
    txmsg.errors.OutcomeConflict,
    txmsg.errors.OutcomeExpired,
    txmsg.errors.OutcomeUnknown,
    txmsg.errors.Overloaded,
    txmsg.errors.PermissionDenied,
    txmsg.errors.ProtocolError,
    txmsg.errors.SchemaMismatch,
    txmsg.errors.StorageError,
    txmsg.errors.TopicClosed,
    txmsg.errors.TopicExists,
    txmsg.errors.TransactionRefused,
    txmsg.errors.Unauthenticated,
    txmsg.errors.UnknownGroup,
    txmsg.errors.UnknownTopic,
    txmsg.errors.UnreadableMessage,
    txmsg.errors.WrongMessageType,
]
caught: type[txmsg.errors.TxmsgError] = txmsg.TxmsgError
temporary: type[txmsg.BrokerUnavailable] = txmsg.Overloaded
wrong: type[txmsg.BrokerUnavailable] = txmsg.OutcomeUnknown  # error: mypy[assignment] pyright[reportAssignmentType]
assert_type(txmsg.__version__, str)
txmsg.NoSuchName  # error: mypy[attr-defined] pyright[reportAttributeAccessIssue,reportUnknownMemberType]
Produser()
