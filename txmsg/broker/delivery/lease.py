"""The delivery lease: the right of one broker to deliver. The clock is an argument; statements are in the store."""

from __future__ import annotations

from collections.abc import Callable

from txmsg.broker.store import delivery as store
from txmsg.errors import BrokerUnavailable

__all__ = ["LEASE_NAME", "DeliveryLease"]

LEASE_NAME = "delivery"


class DeliveryLease:
    """Holds the lease row and knows, by the monotonic clock, until when it may be relied on.

    The deadline counts from before the statement was sent, so it is never later than the database's. Each time
    the lease is taken its epoch rises; the windows of an older epoch are void.
    """

    def __init__(self, broker_id: str, ttl_s: float, monotonic: Callable[[], float]) -> None:
        self._broker_id = broker_id
        self._ttl_s = ttl_s
        self._monotonic = monotonic
        self._epoch: int | None = None
        self._deadline = 0.0
        self._why = "delivery has not started yet"

    @property
    def epoch(self) -> int | None:
        """The epoch under which it was taken last, or None; it may have run out since."""
        return self._epoch

    def is_held(self) -> bool:
        """Whether messages may be delivered at this moment."""
        return self._epoch is not None and self._monotonic() < self._deadline

    def require(self) -> int:
        """The epoch, if messages may be delivered at this moment; else BrokerUnavailable, which says why not."""
        if self._epoch is None or self._monotonic() >= self._deadline:
            why = self._why if self._epoch is None else "its delivery lease ran out while the database was away"
            raise BrokerUnavailable(f"broker {self._broker_id} does not deliver now: {why}; retry")
        return self._epoch

    async def acquire(self, conn: store.Connection) -> bool:
        """Takes the lease under a new epoch if it is free, run out or this broker's own. One transaction."""
        asked_at = self._monotonic()
        epoch = await store.acquire_lease(conn, LEASE_NAME, self._broker_id, self._ttl_s)
        if epoch is None:
            holder = await store.lease_holder(conn, LEASE_NAME)
            self.lose(f"broker {holder} holds the delivery lease")
            return False
        self._epoch, self._deadline = epoch, asked_at + self._ttl_s
        return True

    async def renew(self, conn: store.Connection) -> bool:
        """Holds it for another term; False, and it is lost, when another broker has taken it."""
        epoch, asked_at = self.require(), self._monotonic()
        if not await store.renew_lease(conn, LEASE_NAME, epoch, self._ttl_s):
            self.lose("another broker has taken the delivery lease")
            return False
        if self._epoch == epoch:  # not lost meanwhile
            self._deadline = asked_at + self._ttl_s
        return True

    async def release(self, conn: store.Connection) -> None:
        """Ends it, so that another broker can deliver at once. Doing so twice is fine."""
        epoch, self._epoch, self._why = self._epoch, None, "it is closing"
        if epoch is not None:
            await store.release_lease(conn, LEASE_NAME, epoch)

    def lose(self, why: str) -> None:
        """Forgets the lease: nothing is delivered before it is taken again."""
        self._epoch, self._why = None, why
