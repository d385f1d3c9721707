"""A transactional outbox for Python: messages are delivered if and only if your database transaction commits.

Names are loaded when they are first used: importing the package loads neither protobuf nor SQLAlchemy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from txmsg.runtime.lazy import lazy_names

if TYPE_CHECKING:
    from txmsg.app.application import Txmsg
    from txmsg.app.dependencies import Depends
    from txmsg.app.router import Router
    from txmsg.checker.fence import AsyncFence, AsyncFenceStore, Fence, FenceCheckListener, FenceStore
    from txmsg.checker.listener import CheckMessageListener
    from txmsg.client.async_consumer import AsyncConsumer
    from txmsg.client.async_producer import AsyncProducer
    from txmsg.client.consumer import Consumer
    from txmsg.client.flows.undecided import held_by, held_by_async
    from txmsg.client.outbox.options import Outbox
    from txmsg.client.producer import Producer
    from txmsg.client.receiving.idempotent import idempotent
    from txmsg.client.receiving.inbox import purge_inbox
    from txmsg.client.sending.half import Half
    from txmsg.client.transactional import transactional_message
    from txmsg.consumer.failures import Reject, Retry, RetryAfter, Skip
    from txmsg.errors import (
        BrokerUnavailable,
        CopyDiverged,
        CorruptLog,
        DuplicateId,
        InvalidMessage,
        InvalidName,
        LogBusy,
        MembershipLost,
        MessageTooLarge,
        MirrorDiverged,
        MisuseError,
        NotLeader,
        OffsetOutOfRange,
        OffsetsMissing,
        OutcomeConflict,
        OutcomeExpired,
        OutcomeUnknown,
        Overloaded,
        PermissionDenied,
        ProtocolError,
        SchemaMismatch,
        StorageError,
        TopicClosed,
        TopicExists,
        TransactionRefused,
        TxmsgError,
        Unauthenticated,
        UnknownGroup,
        UnknownTopic,
        UnreadableMessage,
        WrongMessageType,
    )
    from txmsg.message import Message, MessageId, ReceivedMessage, TransactionId, TransactionState, new_transaction_id
    from txmsg.runtime.start import Start
    from txmsg.tables import create_tables
    from txmsg.typed.topic import Topic

__version__ = "0.1.0"

__all__ = [
    "AsyncConsumer",
    "AsyncFence",
    "AsyncFenceStore",
    "AsyncProducer",
    "BrokerUnavailable",
    "CheckMessageListener",
    "Consumer",
    "CopyDiverged",
    "CorruptLog",
    "Depends",
    "DuplicateId",
    "Fence",
    "FenceCheckListener",
    "FenceStore",
    "Half",
    "InvalidMessage",
    "InvalidName",
    "LogBusy",
    "MembershipLost",
    "Message",
    "MessageId",
    "MessageTooLarge",
    "MirrorDiverged",
    "MisuseError",
    "NotLeader",
    "OffsetOutOfRange",
    "OffsetsMissing",
    "Outbox",
    "OutcomeConflict",
    "OutcomeExpired",
    "OutcomeUnknown",
    "Overloaded",
    "PermissionDenied",
    "Producer",
    "ProtocolError",
    "ReceivedMessage",
    "Reject",
    "Retry",
    "RetryAfter",
    "Router",
    "SchemaMismatch",
    "Skip",
    "Start",
    "StorageError",
    "Topic",
    "TopicClosed",
    "TopicExists",
    "TransactionId",
    "TransactionRefused",
    "TransactionState",
    "Txmsg",
    "TxmsgError",
    "Unauthenticated",
    "UnknownGroup",
    "UnknownTopic",
    "UnreadableMessage",
    "WrongMessageType",
    "__version__",
    "create_tables",
    "held_by",
    "held_by_async",
    "idempotent",
    "new_transaction_id",
    "purge_inbox",
    "transactional_message",
]

_MODULES = {
    "txmsg.app.application": ("Txmsg",),
    "txmsg.app.dependencies": ("Depends",),
    "txmsg.app.router": ("Router",),
    "txmsg.checker.fence": ("AsyncFence", "AsyncFenceStore", "Fence", "FenceCheckListener", "FenceStore"),
    "txmsg.checker.listener": ("CheckMessageListener",),
    "txmsg.client.async_consumer": ("AsyncConsumer",),
    "txmsg.client.async_producer": ("AsyncProducer",),
    "txmsg.client.consumer": ("Consumer",),
    "txmsg.client.sending.half": ("Half",),
    "txmsg.client.flows.undecided": ("held_by", "held_by_async"),
    "txmsg.client.receiving.idempotent": ("idempotent",),
    "txmsg.client.receiving.inbox": ("purge_inbox",),
    "txmsg.client.outbox.options": ("Outbox",),
    "txmsg.client.producer": ("Producer",),
    "txmsg.client.transactional": ("transactional_message",),
    "txmsg.consumer.failures": ("Reject", "Retry", "RetryAfter", "Skip"),
    "txmsg.message": (
        *("Message", "MessageId", "ReceivedMessage"),
        *("TransactionId", "TransactionState", "new_transaction_id"),
    ),
    "txmsg.runtime.start": ("Start",),
    "txmsg.tables": ("create_tables",),
    "txmsg.typed.topic": ("Topic",),
}
_MODULE_OF = dict.fromkeys(__all__, "txmsg.errors") | {
    name: module for module, names in _MODULES.items() for name in names
}

if not TYPE_CHECKING:  # a type checker that saw it would take every misspelt name for an object
    __getattr__, __dir__ = lazy_names(__name__, _MODULE_OF)
