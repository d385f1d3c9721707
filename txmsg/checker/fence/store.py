"""The contract of a fence in a store of an application's own: any that has transactions and unique keys.

txmsg.testing.fences has the tests that a store must pass.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Final, Generic, TypeVar
from uuid import UUID

from txmsg.message import ReceivedMessage, TransactionId, TransactionState

O_co = TypeVar("O_co", covariant=True)


class FenceStore(ABC, Generic[O_co]):
    """A fence in an application's own store. Give it to the producer as check_listener=, and as session=.

    The store keeps one row per transaction, unique by its id, with the outcome 'commit' or 'rollback'. The transaction
    writes 'commit' with its effects; a check of a transaction without a row writes 'rollback'. So only one of them
    succeeds, and nothing commits after its message was dropped. All methods are called by several threads.

    The type parameter is the type that the decorated function gets: `class OrderFence(FenceStore[Connection])`.
    """

    reads_bodies: Final = False

    @abstractmethod
    def fence_id(self) -> UUID:
        """A random id, created on first use and kept in the store.

        A copy of the store must get a new one: brokers check back only with clients that can read the original.
        """

    @abstractmethod
    def transaction(self, transaction_id: TransactionId) -> AbstractContextManager[O_co]:
        """A context manager around the decorated function, which gets the value that it yields.

        On entry it begins a transaction and writes the row 'commit'; if there is a row, it raises TransactionRefused.
        At the end of the block it commits, and raises unless row *and* effects are certainly committed, for example if
        the transaction was ended, aborted or replaced inside. If the block raises, it rolls back, and propagates the
        exception. It must not begin inside a transaction that other code may roll back.
        """

    @abstractmethod
    def outcome(self, transaction_id: TransactionId) -> TransactionState:
        """COMMIT or ROLLBACK by the committed row; if there is none, it is created as 'rollback'. Idempotent.

        UNKNOWN while the transaction is running, after a second at most: it must not wait for its end. Before it
        returns ROLLBACK, the row must be on disk. It reads the primary, never a replica. An exception counts as
        UNKNOWN.
        """

    def check(self, message: ReceivedMessage) -> TransactionState:
        """Implement CheckMessageListener."""
        return self.outcome(message.transaction_id)


class AsyncFenceStore(ABC, Generic[O_co]):
    """The same for an AsyncProducer. All methods are awaited on the event loop of the producer."""

    reads_bodies: Final = False

    @abstractmethod
    async def fence_id(self) -> UUID:
        """See `FenceStore.fence_id`."""

    @abstractmethod
    def transaction(self, transaction_id: TransactionId) -> AbstractAsyncContextManager[O_co]:
        """See `FenceStore.transaction`."""

    @abstractmethod
    async def outcome(self, transaction_id: TransactionId) -> TransactionState:
        """See `FenceStore.outcome`."""

    async def check(self, message: ReceivedMessage) -> TransactionState:
        """Implement CheckMessageListener."""
        return await self.outcome(message.transaction_id)
