"""`@idempotent` for Django: a handler whose effects happen once per message, in one transaction of Django."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db import DEFAULT_DB_ALIAS, transaction

from txmsg.consumer.subscriptions import GroupHandler, refuse_subscribed
from txmsg.contrib.django import rows
from txmsg.contrib.django.producers import declare
from txmsg.errors import MisuseError, StorageError
from txmsg.message import ReceivedMessage, check_name
from txmsg.runtime.logs import EventLog
from txmsg.runtime.user_function import check_takes, finished, name_of

_log = EventLog(__name__)

Handler = Callable[..., Any]


def idempotent(
    using: str = DEFAULT_DB_ALIAS, *, group: str | None = None
) -> Callable[[Handler], DjangoIdempotentHandler]:
    """Decorate a handler: its effects in the database `using` happen once per message and consumer group.

    Under `subscribe` its parameters are filled as without it; called by itself, it takes the message. It runs in
    `transaction.atomic(using, durable=True)`, in which the message is recorded in txmsg_inbox, and in which it may
    `send`; a repeated message is skipped. If an operator asks to handle a message again, it has a higher generation and
    is handled. group: default that of the subscription.
    """
    if callable(using):
        raise MisuseError("@idempotent is used without parentheses: write @idempotent()")

    def decorate(handler: Handler) -> DjangoIdempotentHandler:
        refuse_subscribed(handler)
        check_takes("the handler under @idempotent", handler, is_all=False)
        declare(using)
        return DjangoIdempotentHandler(handler, using, group)

    return decorate


class DjangoIdempotentHandler(GroupHandler):
    """A handler whose messages are recorded. `subscribe` gives it its group."""

    def __init__(self, handler: Handler, using: str, group: str | None) -> None:
        self.handler = handler
        self.using = using
        self.group = None if group is None else check_name("consumer group", group)
        self.__name__ = getattr(handler, "__name__", type(handler).__name__)
        self.__doc__ = handler.__doc__

    def __call__(self, message: ReceivedMessage) -> None:
        group = self.group
        if group is None:
            raise MisuseError(
                f"{name_of(self.handler)} does not know its consumer group: put @subscribe(...) above @idempotent(), "
                "or give @idempotent(group=...)"
            )
        # Durable: Django refuses it inside another block, at whose end alone this one would commit.
        with transaction.atomic(using=self.using, durable=True):
            if not rows.record_message(self.using, group, message):
                _log.info(
                    "inbox.skipped",
                    "message %(message_id)s was handled before by group %(group)s: skipped",
                    message_id=message.id,
                    group=group,
                )
                return
            finished(name_of(self.handler), self.handler(message))
        # PostgreSQL answers COMMIT of a failed transaction with a silent ROLLBACK, which Django takes for a commit; so
        # the row is read again before the message is acknowledged.
        if not rows.is_message_recorded(self.using, group, message):
            raise StorageError(
                f"the transaction of {name_of(self.handler)} did not commit, though Django's database {self.using!r} "
                "said so: an error of the database was caught in the handler, outside a block of atomic()"
            )
