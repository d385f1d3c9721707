"""The producers of an application: made before it runs or while it does, started and closed with it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, TypeVar

from txmsg.checker.listener import CheckMessageListener
from txmsg.client.app.hooks import entered
from txmsg.client.app.sending import OnSend, Outgoing
from txmsg.client.async_producer import AsyncProducer
from txmsg.client.producer import Producer
from txmsg.runtime.forks import renew_in_children

if TYPE_CHECKING:
    from txmsg.message.encryption import Encryption

BrokersChoice = str | Sequence[str | Sequence[str]] | None
AnyProducer = Producer | AsyncProducer
K = TypeVar("K", Producer, AsyncProducer)


class AppProducers:
    """All producers of an application. Their messages pass `on_send`. brokers: returns their brokers. options: of
    each."""

    def __init__(
        self, brokers: Callable[[], BrokersChoice], options: Mapping[str, Any], encryption: Encryption | None
    ) -> None:
        self.on_send: list[OnSend] = []
        """Functions that each message passes on its way out; may be added to."""
        self._brokers = brokers
        self._options = {**options, "encryption": Outgoing(self.on_send, encryption)}
        self._made: list[AnyProducer] = []
        self._shared: dict[type[AnyProducer], AnyProducer] = {}
        self._renew()
        renew_in_children(self)

    def _renew(self) -> None:
        self._making = threading.Lock()

    def __iter__(self) -> Iterator[AnyProducer]:
        return iter(list(self._made))

    def make(self, kind: type[K], group: str, **options: Any) -> K:
        """Return a new producer."""
        made = kind(self._brokers(), group=group, **options, **self._options)
        self._made.append(made)
        return made

    def shared(self, kind: type[K], group: str, listener: Callable[[], CheckMessageListener | None]) -> K:
        """Return the producer of this kind with which the application itself sends; made by the first call. From any
        thread.

        A producer that was closed, or whose loop was, is reset to its state before the first use: each test has its own
        loop.
        """
        # Two threads that send first at the same time must not make two producers: the loser would never be closed.
        with self._making:
            found = self._shared.get(kind)
            if found is None:
                found = self._shared[kind] = self.make(kind, group, check_listener=listener())
            elif found._is_over:
                found._reopen(self._brokers())
        assert isinstance(found, kind)
        return found

    def reopen(self) -> None:
        """Reset the producers to their state before the first use, except those that an earlier call uses already.
        Called before a start."""
        for producer in self:
            if not producer._is_in_use(self._brokers()):
                producer._reopen(self._brokers())

    def started(self, threads: Executor) -> list[AbstractAsyncContextManager[object]]:
        """Return contexts that start and close each of them."""
        return [entered(producer, threads) for producer in self]

    async def close(self, threads: Executor) -> None:
        """Close the producers that hooks, or handlers, have used: closing one twice is fine."""
        for producer in self:
            if isinstance(producer, AsyncProducer):
                await producer.close()
            else:
                await asyncio.get_running_loop().run_in_executor(threads, producer.close)
