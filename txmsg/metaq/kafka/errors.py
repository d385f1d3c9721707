"""Errors of Kafka and librdkafka as errors of txmsg, with what to do about them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from confluent_kafka import KafkaError, KafkaException

from txmsg.errors import (
    BrokerUnavailable,
    InvalidMessage,
    LogBusy,
    MessageTooLarge,
    MisuseError,
    OffsetOutOfRange,
    OutcomeUnknown,
    PermissionDenied,
    StorageError,
    TopicExists,
    TxmsgError,
    Unauthenticated,
    UnknownGroup,
    UnknownTopic,
    printable,
)


def _table(kinds: Mapping[type[TxmsgError], Iterable[str]]) -> dict[int, type[TxmsgError]]:
    return {getattr(KafkaError, name): kind for kind, names in kinds.items() for name in names}


_KINDS: Final = _table(
    {
        BrokerUnavailable: (
            "_ALL_BROKERS_DOWN",
            "_AUTO_OFFSET_RESET",  # a node that is late may return it to reads of single records
            "_DESTROY_BROKER",
            "_RESOLVE",
            "_SSL",
            "_TIMED_OUT",
            "_TIMED_OUT_QUEUE",
            "_TRANSPORT",
            "_WAIT_COORD",
            "BROKER_NOT_AVAILABLE",
            "CONCURRENT_TRANSACTIONS",
            "COORDINATOR_LOAD_IN_PROGRESS",
            "COORDINATOR_NOT_AVAILABLE",
            "FENCED_LEADER_EPOCH",
            "KAFKA_STORAGE_ERROR",
            "LEADER_NOT_AVAILABLE",
            "NETWORK_EXCEPTION",
            "NOT_CONTROLLER",
            "NOT_COORDINATOR",
            "NOT_ENOUGH_REPLICAS",
            "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
            "NOT_LEADER_FOR_PARTITION",
            "OFFSET_NOT_AVAILABLE",
            "REPLICA_NOT_AVAILABLE",
            "REQUEST_TIMED_OUT",
            "UNKNOWN_LEADER_EPOCH",
            "UNSTABLE_OFFSET_COMMIT",
        ),
        Unauthenticated: ("_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED", "UNSUPPORTED_SASL_MECHANISM"),
        PermissionDenied: (
            "CLUSTER_AUTHORIZATION_FAILED",
            "GROUP_AUTHORIZATION_FAILED",
            "TOPIC_AUTHORIZATION_FAILED",
            "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
        ),
        UnknownTopic: ("_UNKNOWN_PARTITION", "_UNKNOWN_TOPIC", "UNKNOWN_TOPIC_OR_PART"),
        UnknownGroup: ("GROUP_ID_NOT_FOUND",),
        TopicExists: ("TOPIC_ALREADY_EXISTS",),
        InvalidMessage: ("INVALID_RECORD", "INVALID_TIMESTAMP"),
        MessageTooLarge: ("MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE"),
        OffsetOutOfRange: ("OFFSET_OUT_OF_RANGE",),
        OutcomeUnknown: ("_FATAL", "_MSG_TIMED_OUT", "_PURGE_INFLIGHT", "_PURGE_QUEUE"),
        LogBusy: ("_FENCED", "INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED"),
        MisuseError: (
            "_INVALID_ARG",
            "INVALID_CONFIG",
            "INVALID_PARTITIONS",
            "INVALID_REPLICATION_FACTOR",
            "NON_EMPTY_GROUP",
            "POLICY_VIOLATION",
            "SECURITY_DISABLED",
            "TOPIC_EXCEPTION",
        ),
    }
)
_WAYS_OUT: Final[dict[type[TxmsgError], str]] = {
    Unauthenticated: "check the user, password and mechanism in the file of Kafka's properties",
    PermissionDenied: "have Kafka's administrator allow it, as by kafka-acls.sh",
    UnknownTopic: "create it with kafka-topics.sh or `txmsg metaq topic`, or check the spelling",
}


def kafka_error_of(exc: KafkaException) -> KafkaError:
    """Return the KafkaError that an exception contains."""
    found = exc.args[0] if exc.args else None
    return found if isinstance(found, KafkaError) else KafkaError(KafkaError._FAIL, str(exc))


def error_of(error: KafkaError, doing: str, *, hint: str = "") -> TxmsgError:
    """Return the error for a failure while `doing` ("reading topic 'orders' of kafka://...").

    hint: further known facts.
    """
    kind = _KINDS.get(error.code(), StorageError)
    said = printable(error.str())
    parts = [f"{doing} failed: {said} ({error.name()})"]
    if hint and hint not in said:
        parts.append(hint)
    if kind in _WAYS_OUT:
        parts.append(_WAYS_OUT[kind])
    return kind("; ".join(parts))
