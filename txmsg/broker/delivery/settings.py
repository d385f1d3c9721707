"""What a person has set for one consumer group. Values."""

from __future__ import annotations

from dataclasses import dataclass, field

from txmsg.runtime.backoff import Backoff

__all__ = ["GroupSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """The settings of a group as they stand in its row; `txmsg group alter` writes them."""

    backoff: Backoff = field(default_factory=Backoff)
    parks_keys: bool = False
    """Whether an ordering key whose message is a dead letter waits for a person."""
    deliver_rate_max: float | None = None
    """Messages per second that this broker delivers to the group; None: no limit."""
    version: int = 0
