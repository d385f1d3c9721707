"""`Transaction`: sends messages with the commit of a database transaction, whose owner may be anyone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, TypeVar, overload

from txmsg.message import Message, MessageId, TransactionId
from txmsg.message.typed.outgoing import outgoing
from txmsg.message.typed.topic import Topic

P = TypeVar("P")


class Transaction(ABC):
    """Sends messages that are delivered if and only if a database transaction commits.

    It is what `producer.transaction(session)` gives, and what a handler of an application gets for a parameter that is
    annotated with it.
    """

    transaction_id: TransactionId
    """Of its messages."""

    @overload
    def send(self, message: Message, /) -> MessageId: ...
    @overload
    def send(self, topic: Topic[P], value: P, /, *, tag: str | None = None) -> MessageId: ...
    @overload
    def send(
        self,
        topic: str,
        value: object,
        /,
        *,
        key: object = None,
        ordering_key: object = None,
        tag: str | None = None,
    ) -> MessageId: ...
    def send(self, message: Message | str | Topic[Any], value: object = ..., /, **options: Any) -> MessageId:
        """Buffer a message, or a value for a topic; it leaves right before the commit.

        The value is the payload of a `Topic`; for a topic's name it is bytes, or becomes JSON as the arguments of a
        decorated function do. key, ordering_key: str, or what has a short text, such as int and UUID.

        May be called by listeners to the session's `before_flush`, `after_flush`, `after_flush_postexec` and
        `before_commit`, also at the end of the transaction. A message sent inside a savepoint goes with it when it is
        rolled back, and its id to the next one sent. Raises MisuseError after the end, InvalidMessage beyond 1,000
        messages.
        """
        return self._add(outgoing("tx.send", message, value, **options))

    @abstractmethod
    def _add(self, message: Message) -> MessageId: ...
