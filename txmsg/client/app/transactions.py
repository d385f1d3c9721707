"""Handlers that run in one transaction: the row that records the message, their effects, and the messages that they
send.

A handler runs so if it asks for a session of the application's `database=`, for `tx`, or both; or if it returns
messages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from txmsg.client.app.database import BusinessDatabase
from txmsg.client.app.dependencies import Injected
from txmsg.client.async_producer import AsyncProducer
from txmsg.client.producer import Producer
from txmsg.client.receiving.inbox import InboxHandler
from txmsg.client.receiving.inbox_handler import IdempotentHandler
from txmsg.client.receiving.inbox_handler_async import AsyncIdempotentHandler
from txmsg.client.receiving.sending_handler import SendingHandler
from txmsg.client.receiving.sending_handler_async import AsyncSendingHandler
from txmsg.errors import MisuseError
from txmsg.runtime.user_function import name_of


class Transactions:
    """Makes handlers in transactions of a database; without a database it refuses them.

    producer: returns the producer for a handler of this name that sends. Raises MisuseError if it cannot.
    """

    def __init__(
        self,
        database: BusinessDatabase | None = None,
        producer: Callable[[str], Producer | AsyncProducer] | None = None,
    ) -> None:
        self._database = database
        self._producer = producer

    def handler(self, function: Callable[..., Any], injected: Injected, group: str) -> InboxHandler[Any]:
        """Return the handler of messages of this group in one transaction. Raises MisuseError."""
        database = self._checked(function, injected)
        if injected.sends:
            assert self._producer is not None, "it comes with the database"
            producer: Any = self._producer(name_of(function))
            kind: Any = AsyncSendingHandler if database.is_async else SendingHandler
            sending: InboxHandler[Any] = kind(function, database.session, group, producer)
            sending.handler = injected.on_loop_in if database.is_async else injected.on_thread_in
            return sending
        kind = AsyncIdempotentHandler if database.is_async else IdempotentHandler
        made: InboxHandler[Any] = kind(function, database.session, group)
        call = injected.on_loop_in if database.is_async else injected.on_thread_in
        made.handler = lambda session, message: call(session, None, message)
        return made

    def checked_database(self, function: Callable[..., Any], injected: Injected) -> BusinessDatabase:
        """Return the database. Raises MisuseError if there is none for this handler, which needs a transaction."""
        if self._database is None:
            raise MisuseError(
                f"{name_of(function)} {injected.why_in_transaction}, so it runs in a transaction, and the application "
                "has no database: write Txmsg(..., database=engine)"
            )
        return self._database

    def _checked(self, function: Callable[..., Any], injected: Injected) -> BusinessDatabase:
        name, database = name_of(function), self.checked_database(function, injected)
        if database.is_async and not injected.is_coroutine:
            raise MisuseError(f"{name} is def, and database= has an AsyncEngine: make it async def, or give an Engine")
        if injected.is_coroutine and not database.is_async:
            raise MisuseError(f"{name} is async def, and database= has an Engine: make it def, or give an AsyncEngine")
        for asked in injected.sessions:
            if not issubclass(database.session_class, asked):
                raise MisuseError(
                    f"{name} asks for a session of type {asked.__name__}, and database= gives "
                    f"{database.session_class.__name__}: annotate it with that"
                )
        return database


NO_DATABASE: Final = Transactions()
