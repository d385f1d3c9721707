"""Deliveries that have expired: a result that their consumers send all the same still counts. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from txmsg.broker.store.rows import RetryKey
from txmsg.message import QueueId

COUNT_MAX = 10_000
"""Maximum number of messages of a group whose expired deliveries are remembered; the oldest are forgotten first."""


class LateResults:
    """The tokens of expired deliveries of unsettled messages, and those messages that were processed since.

    The latter are done as soon as no other consumer has them (decision 95).
    """

    def __init__(self) -> None:
        self._tokens: dict[RetryKey, tuple[int, ...] | None] = {}  # None: it was processed

    def expired(self, keys: Iterable[RetryKey], token: int) -> None:
        """Note that these were delivered under this token, and not settled in time."""
        for key in keys:
            tokens = self._tokens.pop(key, ())
            self._tokens[key] = None if tokens is None else (*tokens, token)
        # The dict is in the order of the last expiry, because a key is removed before it is set again.
        while len(self._tokens) > COUNT_MAX:
            del self._tokens[next(iter(self._tokens))]

    def acknowledge(self, queue_id: QueueId, offsets: Sequence[int], token: int) -> list[int]:
        """Note that consumers have processed these, delivered under this token.

        Returns the offsets not known under it.
        """
        others: list[int] = []
        for offset in offsets:
            key = RetryKey(queue_id, offset)
            if token in (self._tokens.get(key) or ()):
                self._tokens[key] = None
            else:
                others.append(offset)
        return others

    def is_processed(self, key: RetryKey) -> bool:
        """Return True if a consumer whose delivery had expired has processed this message."""
        return bool(self._tokens) and self._tokens.get(key, ()) is None

    def settled(self, keys: Iterable[RetryKey]) -> None:
        """Forget messages that are done, or dead: later results do not count."""
        for key in keys:
            self._tokens.pop(key, None)

    def forget_queues(self, queue_ids: Collection[QueueId]) -> None:
        """Forget the messages of queues that another broker delivers now."""
        self.settled([key for key in self._tokens if key.queue_id in queue_ids])
