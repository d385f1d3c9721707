"""What consumers may hold of ordered messages, as the next broker of a queue must know it.

Whoever takes a queue over from a broker that has died cannot know what of it is in whose hands, and would give the next
message of a key while the one before is still worked at. So the cursor says until when consumers may hold ordered
messages, before they get any, and the next broker gives nothing of that queue until then. A queue handed over in
order waits for nothing, and one that comes back to the very broker that had it only for what that had given. The
statements are in the store; this is when to write what.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from txmsg.broker.delivery.group import Feed
from txmsg.broker.delivery.handing import still_out

__all__ = ["MARGIN_S", "Given", "expiring", "given_of", "idle", "to_note"]

MARGIN_S = 10.0
"""Noted beyond the visibility timeout, so that one note is good for many deliveries."""
_IDLE_S = 5.0


class Given(NamedTuple):
    """What this broker had given of ordered messages of a queue when it lost the queue, under an epoch.

    until: when nobody can hold them any more; minus infinity: nobody does. noted_until: what the cursor says.
    """

    epoch: int
    until: float
    noted_until: float


def given_of(feeds: Iterable[Feed], now: float) -> dict[tuple[int, int], Given]:
    """By group and queue, of those whose cursors say that something may be held."""
    given: dict[tuple[int, int], Given] = {}
    for feed in feeds:
        waits_until = -math.inf if feed.opens_at is None else feed.opens_at  # what it has not lived to see the end of
        noted_until = max(feed.held_until, waits_until)
        if noted_until > now:
            until = max(feed.window.out_until, feed.group.retrying.out_until(feed.queue_id), waits_until)
            given[feed.group.id, feed.queue_id] = Given(feed.epoch, until, noted_until)
    return given


def to_note(feeds: Iterable[Feed], now: float, visibility_timeout_s: float) -> list[Feed]:
    """Of feeds that are about to give messages for visibility_timeout_s: those whose cursors do not say so yet."""
    return [feed for feed in feeds if feed.window.is_ordered and feed.held_until < now + visibility_timeout_s]


def expiring(feeds: Iterable[Feed], now: float) -> list[Feed]:
    """Feeds whose consumers still hold messages, and may have renewed them, while the note runs out."""
    return [
        feed
        for feed in feeds
        if feed.held_until and feed.held_until < now + feed.held_s + MARGIN_S / 2 and still_out([feed])
    ]


def idle(feeds: Iterable[Feed], now: float) -> list[Feed]:
    """Feeds whose notes can go: nothing was held for a while, so that a takeover need not wait."""
    found: list[Feed] = []
    for feed in feeds:
        if not feed.held_until:
            continue
        if still_out([feed]):
            feed.idle_since = None
        elif feed.idle_since is None:
            feed.idle_since = now
        elif now - feed.idle_since >= _IDLE_S:
            found.append(feed)
    return found
