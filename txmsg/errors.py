"""Every error that txmsg raises, and its addressee: the caller, an operator, or no one (retry).

TxmsgError
 +-- InvalidMessage            caller: the message cannot be sent as it is
 |    +-- InvalidName          caller: a topic, group, tag or key is badly formed
 |    +-- MessageTooLarge      caller: body or headers over the limit
 |    +-- WrongMessageType     caller: the topic takes messages of another type only
 +-- UnknownTopic              caller: create the topic, or check the spelling
 +-- UnknownGroup              caller: the consumer group does not exist
 +-- TopicExists               caller: the topic is there with other settings
 +-- TopicClosed               operator: the topic takes no messages now
 +-- DuplicateId               caller: the id was used before with another content
 +-- OutcomeConflict           no one: the transaction already has the other outcome, which is final
 +-- OutcomeExpired            operator: the broker no longer remembers the transaction
 +-- BrokerUnavailable         retry: nothing is known to be stored
 |    +-- Overloaded           retry later: the queues of the broker, or the producer's own, are full
 +-- OutcomeUnknown            caller: it may have been carried out; a repeat is another message
 +-- TransactionRefused        caller: a late local transaction whose check was already answered ROLLBACK
 +-- Unauthenticated           caller: no credential, or one that is not valid (any more)
 +-- PermissionDenied          operator: the user lacks a rule that allows this
 +-- MisuseError               caller: the API, or a setting, is used in a way that cannot work
 +-- SchemaMismatch            operator: the database has another schema revision than this release
 +-- StorageError              operator: a database lacks something (rights, settings, tables)
 |    +-- LogBusy              operator: another process writes a MetaQ log
 |    +-- NotLeader            operator: a copy of a MetaQ log, or one that was superseded, takes no changes
 +-- MirrorDiverged            operator: a log and the table that it mirrors hold different messages
 +-- CopyDiverged              operator: a copy of a MetaQ log holds what its leader does not
 +-- CorruptLog                operator: a MetaQ log is damaged; `txmsg metaq check` says where
 |    +-- UnreadableMessage    operator: a message of a log whose headers or times cannot be read; skip it
 +-- OffsetOutOfRange          caller: a position in a queue that is not kept (any more, or not yet)
 |    +-- OffsetsMissing       caller: a hole, recorded by the log itself
 +-- MembershipLost            no one: a member of a group was silent for too long; it joins again
 +-- ProtocolError             operator: the peer sent what this release does not understand
"""

from __future__ import annotations

import reprlib

__all__ = [
    "BrokerUnavailable",
    "CopyDiverged",
    "CorruptLog",
    "DuplicateId",
    "InvalidMessage",
    "InvalidName",
    "LogBusy",
    "MembershipLost",
    "MessageTooLarge",
    "MirrorDiverged",
    "MisuseError",
    "NotLeader",
    "OffsetOutOfRange",
    "OffsetsMissing",
    "OutcomeConflict",
    "OutcomeExpired",
    "OutcomeUnknown",
    "Overloaded",
    "PermissionDenied",
    "ProtocolError",
    "SchemaMismatch",
    "StorageError",
    "TopicClosed",
    "TopicExists",
    "TransactionRefused",
    "TxmsgError",
    "Unauthenticated",
    "UnknownGroup",
    "UnknownTopic",
    "UnreadableMessage",
    "WrongMessageType",
]

_SHORT = reprlib.Repr()
# Values in error texts may be whole bodies or connections: a log line must stay readable.
_SHORT.maxstring = _SHORT.maxother = 80


def shown(value: object) -> str:
    """Return a value's repr for an error text, truncated to a readable length."""
    return _SHORT.repr(value)


def said_by(error: BaseException) -> str:
    """Return the error's text, even if its own `__str__` raises."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - the user's code
        return "<its __str__ raised>"


def printable(text: str, *, lines: bool = False) -> str:
    """Return a foreign text that is safe in a log and a terminal: unprintable characters become escapes.

    These are control characters, ANSI sequences by their first one, and characters that change the direction of
    writing. With `lines`, line feeds and tabs stay.
    """
    if text.isprintable():
        return text
    kept = "\n\t" if lines else ""
    return "".join(
        char if char.isprintable() or char in kept else char.encode("unicode_escape").decode() for char in text
    )


class TxmsgError(Exception):
    """The root of all errors raised by txmsg. `code` names the class on the wire."""

    code = "internal"


class InvalidMessage(TxmsgError):
    """The message cannot be sent: the text names the field, the value and the rule. Nothing was stored."""

    code = "invalid_message"


class InvalidName(InvalidMessage):
    """A topic, group, tag or key is empty, too long, or contains a character that is not allowed."""

    code = "invalid_name"


class MessageTooLarge(InvalidMessage):
    """The body (default limit 4 MiB) or the headers (64 KiB) are too large."""

    code = "message_too_large"


class WrongMessageType(InvalidMessage):
    """The topic accepts messages of one type only: normal, fifo, delay or transaction. Nothing was stored."""

    code = "wrong_message_type"


class UnknownTopic(TxmsgError):
    """The topic does not exist and the broker does not create topics by itself."""

    code = "unknown_topic"


class UnknownGroup(TxmsgError):
    """No consumer group has this name; a group is created when its first consumer requests messages."""

    code = "unknown_group"


class TopicExists(TxmsgError):
    """A topic of this name exists with other settings, which are not changed."""

    code = "topic_exists"


class TopicClosed(TxmsgError):
    """The topic is closed for writing, for example before it is drained or deleted. Nothing was stored."""

    code = "topic_closed"


class DuplicateId(TxmsgError):
    """The same message id was stored before with different content. The first message is kept."""

    code = "duplicate_id"


class OutcomeConflict(TxmsgError):
    """Commit after rollback, or rollback after commit. The first outcome is final."""

    code = "outcome_conflict"


class OutcomeExpired(TxmsgError):
    """The transaction is not known: never stored, or resolved longer ago than the broker remembers (>= 10 min)."""

    code = "outcome_expired"


class BrokerUnavailable(TxmsgError):
    """No broker could be reached, or its database is unavailable."""

    code = "broker_unavailable"


class Overloaded(BrokerUnavailable):
    """The queues of the broker, or the producer's own, are full. Slow down and retry."""

    code = "overloaded"


class OutcomeUnknown(TxmsgError):
    """The request may have been carried out or not: no answer came.

    Sending again creates a second message with a new id, so consumers must be idempotent. A transaction is resolved by
    its check-back.
    """

    code = "outcome_unknown"


class TransactionRefused(TxmsgError):
    """The check of this transaction was already answered ROLLBACK, so it cannot commit.

    Raised when the fence row cannot be written. Run the business operation again as a new transaction.
    """

    code = "transaction_refused"


class Unauthenticated(TxmsgError):
    """The server requires a credential, which is missing, wrong, expired or revoked. Nothing was done."""

    code = "unauthenticated"


class PermissionDenied(TxmsgError):
    """The user may not do this: the text names the rule that is missing, and nothing was done.

    If a rule was removed while a call was in progress, parts of the call may have been carried out; the text says so.
    """

    code = "permission_denied"
    what = ""
    """At a server: the action and its object, such as `administer topic:orders`."""


class MisuseError(TxmsgError):
    """The API was used in a way that cannot work or would lose a guarantee, such as committing in a decorated function.

    Also raised for a setting that is out of range, and a port that is in use.
    """

    code = "misuse"


class SchemaMismatch(TxmsgError):
    """The Notify database is at a revision this release does not support; the text names the command that fixes it."""

    code = "schema_mismatch"


class StorageError(TxmsgError):
    """A database (Notify, embedded or business) cannot be used as it is; the text says what is missing."""

    code = "storage"


class LogBusy(StorageError):
    """Another process writes this MetaQ log, and a log has one writer."""

    code = "log_busy"


class NotLeader(StorageError):
    """This MetaQ log accepts no changes: it is a copy, or a copy of it was promoted. The text names the leader."""

    code = "not_leader"


class CopyDiverged(TxmsgError):
    """A copy of a MetaQ log holds frames that its leader does not. Nothing is changed; the text says what to do."""

    code = "copy_diverged"


class MirrorDiverged(TxmsgError):
    """A log and the table it mirrors hold different messages at this offset; mirroring of the queue stops.

    This happens after a backup of the Notify database was restored, a standby that lagged behind was promoted, or a
    topic was deleted and recreated. Other queues are still mirrored.
    """

    code = "mirror_diverged"

    def __init__(self, text: str, topic: str = "", queue: int = 0, offset: int = 0) -> None:
        super().__init__(text)
        self.topic = topic
        self.queue = queue
        self.offset = offset


class CorruptLog(TxmsgError):
    """A MetaQ log contains damaged bytes. None of them are served.

    next_offset: when reading a queue, the offset of the first intact message after the damage, or None.
    """

    code = "corrupt_log"

    def __init__(self, text: str, next_offset: int | None = None) -> None:
        super().__init__(text)
        self.next_offset = next_offset


class UnreadableMessage(CorruptLog):
    """A message of a log has headers or times that cannot be read. All others of its queue are served.

    next_offset: the offset after it.
    """

    code = "unreadable_message"


class OffsetOutOfRange(TxmsgError):
    """A queue has no message at this offset: deleted by retention, or not written yet.

    begin, end: the offsets that are kept: the first one, and the one after the last.
    """

    code = "offset_out_of_range"

    def __init__(self, text: str, begin: int = 0, end: int = 0) -> None:
        super().__init__(text)
        self.begin = begin
        self.end = end


class OffsetsMissing(OffsetOutOfRange):
    """Messages were dropped before they could be mirrored: offsets begin to end are missing. Continue at end."""

    code = "offsets_missing"


class MembershipLost(TxmsgError):
    """A member of a log's group was silent for too long, or its files were removed: others may own its queues."""

    code = "membership_lost"


class ProtocolError(TxmsgError):
    """A request or reply that this release cannot read."""

    code = "protocol"


def _subclasses(cls: type[TxmsgError]) -> list[type[TxmsgError]]:
    return [cls, *(sub for direct in cls.__subclasses__() for sub in _subclasses(direct))]


_BY_CODE = {cls.code: cls for cls in _subclasses(TxmsgError)}
CODES = tuple(_BY_CODE)
"""The codes of all classes on the wire."""


# The text comes from a peer, and is printed in terminals and logs: `printable` keeps its control characters out.
def error_of_code(code: str, text: str) -> TxmsgError:
    """Return the exception for a code and text from the wire. An unknown code (a newer peer) gives a TxmsgError."""
    return _BY_CODE.get(code, TxmsgError)(printable(text))
