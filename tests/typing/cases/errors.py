"""Errors are classes of one tree, which say on the wire what they are."""

from __future__ import annotations

from typing import assert_type

import txmsg
from txmsg import Produser  # error: mypy[attr-defined] pyright[reportAttributeAccessIssue,reportUnknownVariableType]

raised: list[type[txmsg.TxmsgError]] = [
    txmsg.BrokerUnavailable,
    txmsg.CopyDiverged,
    txmsg.CorruptLog,
    txmsg.DuplicateId,
    txmsg.InvalidMessage,
    txmsg.InvalidName,
    txmsg.LogBusy,
    txmsg.MembershipLost,
    txmsg.MessageTooLarge,
    txmsg.MirrorDiverged,
    txmsg.MisuseError,
    txmsg.NotLeader,
    txmsg.OffsetOutOfRange,
    txmsg.OffsetsMissing,
    txmsg.OutcomeConflict,
    txmsg.OutcomeExpired,
    txmsg.OutcomeUnknown,
    txmsg.Overloaded,
    txmsg.PermissionDenied,
    txmsg.ProtocolError,
    txmsg.SchemaMismatch,
    txmsg.StorageError,
    txmsg.TopicClosed,
    txmsg.TopicExists,
    txmsg.TransactionRefused,
    txmsg.Unauthenticated,
    txmsg.UnknownGroup,
    txmsg.UnknownTopic,
    txmsg.UnreadableMessage,
    txmsg.WrongMessageType,
]
temporary: type[txmsg.BrokerUnavailable] = txmsg.Overloaded
wrong: type[txmsg.BrokerUnavailable] = txmsg.OutcomeUnknown  # error: mypy[assignment] pyright[reportAssignmentType]
assert_type(txmsg.__version__, str)
txmsg.NoSuchName  # error: mypy[attr-defined] pyright[reportAttributeAccessIssue,reportUnknownMemberType]
Produser()
