"""A transactional outbox for Python: messages are delivered if and only if your database transaction commits.

The names that most applications use. Less common errors are in `txmsg.errors`; the fence by itself, for upkeep and for
other stores, is in `txmsg.client.fence`. Names are loaded when they are first used: importing the package loads neither
protobuf nor SQLAlchemy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from txmsg.runtime.lazy import lazy_names

if TYPE_CHECKING:
    from txmsg.checker.fence import FenceCheckListener
    from txmsg.checker.listener import CheckMessageListener
    from txmsg.checker.tables import create_tables
    from txmsg.client.app.application import Txmsg
    from txmsg.client.app.dependencies import Depends
    from txmsg.client.app.router import Router
    from txmsg.client.async_consumer import AsyncConsumer
    from txmsg.client.async_producer import AsyncProducer
    from txmsg.client.consumer import Consumer
    from txmsg.client.flows.transaction import Transaction
    from txmsg.client.outbox.options import Outbox
    from txmsg.client.producer import Producer
    from txmsg.client.receiving.idempotent import idempotent
    from txmsg.client.sending.half import Half
    from txmsg.client.transactional import transactional_message
    from txmsg.consumer.failures import Reject, Retry, RetryAfter, Skip
    from txmsg.errors import (
        BrokerUnavailable,
        InvalidMessage,
        MisuseError,
        OutcomeUnknown,
        Overloaded,
        StorageError,
        TransactionRefused,
        TxmsgError,
    )
    from txmsg.message import Message, MessageId, ReceivedMessage, TransactionId, TransactionState, new_transaction_id
    from txmsg.message.typed.topic import Topic
    from txmsg.wire.start import Start

__version__ = "0.1.0"

__all__ = [
    "AsyncConsumer",
    "AsyncProducer",
    "BrokerUnavailable",
    "CheckMessageListener",
    "Consumer",
    "Depends",
    "FenceCheckListener",
    "Half",
    "InvalidMessage",
    "Message",
    "MessageId",
    "MisuseError",
    "Outbox",
    "OutcomeUnknown",
    "Overloaded",
    "Producer",
    "ReceivedMessage",
    "Reject",
    "Retry",
    "RetryAfter",
    "Router",
    "Skip",
    "Start",
    "StorageError",
    "Topic",
    "Transaction",
    "TransactionId",
    "TransactionRefused",
    "TransactionState",
    "Txmsg",
    "TxmsgError",
    "__version__",
    "create_tables",
    "idempotent",
    "new_transaction_id",
    "transactional_message",
]

_MODULES = {
    "txmsg.client.app.application": ("Txmsg",),
    "txmsg.client.app.dependencies": ("Depends",),
    "txmsg.client.app.router": ("Router",),
    "txmsg.checker.fence": ("FenceCheckListener",),
    "txmsg.checker.listener": ("CheckMessageListener",),
    "txmsg.client.async_consumer": ("AsyncConsumer",),
    "txmsg.client.async_producer": ("AsyncProducer",),
    "txmsg.client.consumer": ("Consumer",),
    "txmsg.client.sending.half": ("Half",),
    "txmsg.client.flows.transaction": ("Transaction",),
    "txmsg.client.receiving.idempotent": ("idempotent",),
    "txmsg.client.outbox.options": ("Outbox",),
    "txmsg.client.producer": ("Producer",),
    "txmsg.client.transactional": ("transactional_message",),
    "txmsg.consumer.failures": ("Reject", "Retry", "RetryAfter", "Skip"),
    "txmsg.message": (
        *("Message", "MessageId", "ReceivedMessage"),
        *("TransactionId", "TransactionState", "new_transaction_id"),
    ),
    "txmsg.wire.start": ("Start",),
    "txmsg.checker.tables": ("create_tables",),
    "txmsg.message.typed.topic": ("Topic",),
}
_MODULE_OF = dict.fromkeys(__all__, "txmsg.errors") | {
    name: module for module, names in _MODULES.items() for name in names
}

if not TYPE_CHECKING:  # a type checker that saw it would take every misspelt name for an object
    __getattr__, __dir__ = lazy_names(__name__, _MODULE_OF)
