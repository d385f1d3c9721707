"""Deliveries that have expired: a result that their consumers reach all the same still counts. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from txmsg.broker.store.rows import RetryKey
from txmsg.message import QueueId

COUNT_MAX = 10_000
"""Messages of a group whose expired deliveries are remembered; the oldest are forgotten first."""


class LateResults:
    """Under which tokens messages were delivered that expired and are not settled yet; and which were processed since.

    The latter are done as soon as no other consumer has them.
    """

    def __init__(self) -> None:
        self._tokens: dict[RetryKey, tuple[int, ...] | None] = {}  # None: it was processed

    def expired(self, keys: Iterable[RetryKey], token: int) -> None:
        """These were delivered under this token, and not settled in time."""
        for key in keys:
            tokens = self._tokens.pop(key, ())
            self._tokens[key] = None if tokens is None else (*tokens, token)
        while len(self._tokens) > COUNT_MAX:
            del self._tokens[next(iter(self._tokens))]

    def acknowledge(self, queue_id: QueueId, offsets: Sequence[int], token: int) -> list[int]:
        """Consumers have processed these, which were delivered under this token. Returns the offsets not known so."""
        others: list[int] = []
        for offset in offsets:
            key = RetryKey(queue_id, offset)
            if token in (self._tokens.get(key) or ()):
                self._tokens[key] = None
            else:
                others.append(offset)
        return others

    def is_processed(self, key: RetryKey) -> bool:
        """Whether a consumer whose delivery had expired has processed this message."""
        return bool(self._tokens) and self._tokens.get(key, ()) is None

    def settled(self, keys: Iterable[RetryKey]) -> None:
        """These are done, or dead: nothing that comes later counts."""
        for key in keys:
            self._tokens.pop(key, None)

    def forget_queues(self, queue_ids: Collection[QueueId]) -> None:
        """Another broker delivers these queues now."""
        self.settled([key for key in self._tokens if key.queue_id in queue_ids])
