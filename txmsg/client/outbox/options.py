"""The options of `when_away=`, and their demands on messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from txmsg.errors import InvalidMessage, MisuseError, shown
from txmsg.message import Message
from txmsg.runtime.durations import check_seconds

__all__ = ["Outbox", "WhenAway"]

WAIT_S_MIN, WAIT_S_MAX = 0.01, 60.0
ROWS_MAX = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Outbox:
    """Stores the messages of a call in the business transaction if no broker stores its half messages in time.

    Raises MisuseError for values out of range.
    """

    wait_s: float = 0.25
    """Seconds until then; 0.01 to 60. While no broker answers, one call in a second waits for so long."""
    rows_max: int = ROWS_MAX
    """About how many transactions may wait in the outbox of a producer group. Above it, calls raise BrokerUnavailable
    and do nothing, as without an outbox."""

    def __post_init__(self) -> None:
        check_seconds("wait_s", self.wait_s, least_s=WAIT_S_MIN, most_s=WAIT_S_MAX)
        if not isinstance(self.rows_max, int) or isinstance(self.rows_max, bool) or self.rows_max < 1:
            raise MisuseError(f"rows_max={shown(self.rows_max)} of an Outbox is not an integer of at least 1")


WhenAway: TypeAlias = Literal["raise", "outbox"] | Outbox


def outbox_of(when_away: object, owner: str) -> Outbox | None:
    """Return the Outbox for a user's `when_away=`; None for "raise". Raises MisuseError for an invalid value."""
    if isinstance(when_away, Outbox):
        return when_away
    if when_away == "outbox":
        return Outbox()
    if when_away == "raise":
        return None
    raise MisuseError(
        f'when_away={shown(when_away)} of {owner}: give "raise", "outbox", or Outbox(wait_s=..., rows_max=...)'
    )


def ordering_key_of(messages: Sequence[Message], owner: str) -> str | None:
    """Return the ordering key of a call's messages, by which they wait. Raises InvalidMessage for two."""
    keys = {message.ordering_key for message in messages if message.ordering_key is not None}
    if len(keys) > 1:
        shown_keys = ", ".join(map(repr, sorted(keys)[:5]))
        raise InvalidMessage(
            f"the messages of {owner} have the ordering keys {shown_keys}: with when_away= those of one call have one "
            "ordering key at most, by which they wait in the outbox; send them by calls of their own"
        )
    return keys.pop() if keys else None
