"""Handing queues over: the conditions for another broker to deliver a queue, and the notes that it needs.

A broker that takes over a queue of a dead one does not know which messages consumers still have: it could deliver a
message while the one before it, of the same ordering key, is being processed. So the cursor says until when ordered
messages may be in flight. It is written before they are delivered, and the next broker delivers nothing of that queue
before that time. A queue that is handed over in order does not wait. One that returns to the broker that had it waits
only for the messages that this broker had delivered. This module decides on the notes and their times; the store has
the statements (decision 3).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from txmsg.broker.delivery.group import GroupQueueReader
from txmsg.message import QueueId

MARGIN_S = 10.0
"""Seconds added to the visibility timeout, so that one note serves many deliveries."""
_IDLE_S = 5.0


def has_unsettled(feeds: Sequence[GroupQueueReader]) -> bool:
    """Return True if messages of these feeds are in flight, or have failed and are not yet written."""
    queue_ids = {feed.queue_id for feed in feeds}
    return any(feed.window.unsettled_count for feed in feeds) or any(
        group.retries.has_unsettled(queue_ids) for group in {feed.group for feed in feeds}
    )


def is_finished(feeds: Sequence[GroupQueueReader]) -> bool:
    """Return True if everything is settled and the cursors are written: dropping the feeds redelivers nothing."""
    return not has_unsettled(feeds) and not any(feed.window.is_dirty for feed in feeds)


class OrderedInFlight(NamedTuple):
    """Ordered messages that were in flight when this broker lost a queue."""

    epoch: int
    """The epoch of the lease that was lost."""
    until: float
    """The time when the last of them expires; minus infinity: none were in flight."""
    noted_until: float
    """The time in the cursor."""


def ordered_in_flight(feeds: Iterable[GroupQueueReader], now: float) -> dict[tuple[int, QueueId], OrderedInFlight]:
    """Return, by group and queue, the ordered messages in flight of feeds whose cursors say that there may be some."""
    found: dict[tuple[int, QueueId], OrderedInFlight] = {}
    for feed in feeds:
        waits_until = -math.inf if feed.opens_at is None else feed.opens_at  # those of the broker before
        noted_until = max(feed.noted_until, waits_until)
        if noted_until > now:
            until = max(feed.window.in_flight_until, feed.group.retries.in_flight_until(feed.queue_id), waits_until)
            found[feed.group.id, feed.queue_id] = OrderedInFlight(feed.epoch, until, noted_until)
    return found


def notes_to_write(
    feeds: Iterable[GroupQueueReader], client_id: str, now: float, visibility_timeout_s: float
) -> list[GroupQueueReader]:
    """Return those of feeds about to deliver messages to a consumer whose cursors do not say so yet."""
    return [
        feed
        for feed in feeds
        if feed.window.is_ordered and (feed.noted_until < now + visibility_timeout_s or client_id not in feed.noted_by)
    ]


def note_holder(feeds: Iterable[GroupQueueReader], client_id: str, now: float, visibility_timeout_s: float) -> None:
    """Extend the time for which a consumer named by the cursors of these feeds may hold messages."""
    # In memory only: the noted time in the cursor already covers it, or `notes_to_write` returns the feed.
    until = now + visibility_timeout_s + MARGIN_S
    for feed in feeds:
        if client_id in feed.noted_by:
            feed.noted_by[client_id] = max(until, feed.noted_by[client_id])


def notes_to_lengthen(feeds: Iterable[GroupQueueReader], visibility_timeout_s: float) -> list[GroupQueueReader]:
    """Return those of feeds with renewed messages whose cursors name shorter times only."""
    return [feed for feed in feeds if feed.window.is_ordered and feed.noted_s < visibility_timeout_s]


def notes_to_renew(feeds: Iterable[GroupQueueReader], now: float) -> list[GroupQueueReader]:
    """Return the feeds with messages in flight, perhaps renewed, whose notes are about to expire."""
    return [
        feed
        for feed in feeds
        # Half of the margin before the end, so that a write that fails once can be repeated in time.
        if feed.noted_until and feed.noted_until < now + feed.noted_s + MARGIN_S / 2 and has_unsettled([feed])
    ]


def notes_to_clear(feeds: Iterable[GroupQueueReader], now: float) -> list[GroupQueueReader]:
    """Return the feeds whose notes can be cleared: nothing was in flight for _IDLE_S, so a takeover need not wait."""
    found: list[GroupQueueReader] = []
    for feed in feeds:
        if not feed.noted_until:
            continue
        if has_unsettled([feed]):
            feed.idle_since = None
        elif feed.idle_since is None:
            feed.idle_since = now
        elif now - feed.idle_since >= _IDLE_S:
            found.append(feed)
    return found
