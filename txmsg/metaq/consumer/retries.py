"""Failed messages, as they stand in %RETRY%GROUP and %DLQ%GROUP. Pure: knows no log and no clock.

A retry queue for each delay: in each the messages follow each other as they become due. A copy carries the whole
message, its origin and the error of every attempt, in one header; so it needs nothing of the topic it came from.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from txmsg.consumer.failures import HandlerFailure
from txmsg.errors import CorruptLog
from txmsg.message import ReceivedMessage
from txmsg.metaq.format.frame import FrameColumns, encode
from txmsg.metaq.format.unreadable import is_time, strange_time
from txmsg.metaq.interface import DEAD_LETTERS, RETRIES
from txmsg.metaq.store.log import Append
from txmsg.runtime.backoff import Backoff
from txmsg.wire.headers import pack_headers

HEADER: Final = "txmsg-tried"
"""The header of a copy that names the origin of its message."""
_ERROR_LENGTH_MAX: Final = 2000
_LITTLE: Final = 1.25


@dataclass(frozen=True, slots=True)
class Tried:
    """A failed message, with an error for each failure. message.attempt: the delivery that failed last, or is next."""

    message: ReceivedMessage
    errors: tuple[str, ...] = ()
    due_at_us: int = 0
    last: HandlerFailure | None = None
    """The decision about it if it failed just now."""

    def failed(self, failure: HandlerFailure) -> Tried:
        """Return the same after one more failed attempt."""
        return Tried(self.message, (*self.errors, failure.error[:_ERROR_LENGTH_MAX]), last=failure)

    def delay_s(self, backoff: Backoff) -> float | None:
        """Return the seconds until the next delivery; None: it is dead. At most the longest of the back-off's
        delays.
        """
        if self.last is not None and self.last.is_final:
            return None
        asked_s = None if self.last is None or self.last.delay_s is None else self.last.delay_s
        delay_s = backoff.delay_s(self.message.attempt, asked_s)
        return delay_s if delay_s is None or asked_s is None else min(delay_s, max(backoff.delays_s))


def appends_of(group: str, failed: Sequence[Tried], backoff: Backoff, now_us: int) -> tuple[list[Append], list[Append]]:
    """Return the batches to append for messages that failed just now: to the group's retries, and to its dead
    letters.
    """
    levels: dict[int, list[Tried]] = {}
    dead: list[Tried] = []
    for tried in failed:
        attempt = tried.message.attempt
        delay_s = tried.delay_s(backoff)
        if delay_s is None:
            dead.append(tried)
        else:
            again = tried.message._replace(attempt=attempt + 1)
            level = _level_of(backoff, attempt, delay_s)
            levels.setdefault(level, []).append(Tried(again, tried.errors, now_us + round(delay_s * 1_000_000)))
    retries = [_append(RETRIES + group, level, tried, now_us) for level, tried in sorted(levels.items())]
    return retries, [_append(DEAD_LETTERS + group, 0, dead, now_us)] if dead else []


def _level_of(backoff: Backoff, attempt: int, delay_s: float) -> int:
    """Return the queue of this delay; for one that a handler asked for, that of the next longer one, so that none waits
    behind it.

    One that is a little longer than a queue's, as by jitter, is of that queue: those behind it wait for that little.
    """
    own = min(attempt, len(backoff.delays_s)) - 1
    if backoff.delays_s[own] == delay_s:
        return own
    # A message in a queue of shorter delays would hold up all behind it until its own time.
    fitting = [level for level, each in enumerate(backoff.delays_s) if each * _LITTLE >= delay_s]
    return min(fitting, key=backoff.delays_s.__getitem__)


def again_of(group: str, dead: Sequence[Tried], now_us: int) -> Append:
    """Return the batches to append to the group's retries for dead letters, due at once and as if they were new
    to it.
    """
    tried = [
        Tried(letter.message._replace(attempt=1, generation=letter.message.generation + 1), due_at_us=now_us)
        for letter in dead
    ]
    return _append(RETRIES + group, 0, tried, now_us)


def dead_again_of(group: str, copies: Sequence[ReceivedMessage]) -> Append:
    """Return the batches to append to the group's dead letters for copies that stood there, unchanged."""
    stored_at_us, headers = [copy.stored_at_us for copy in copies], [copy.headers for copy in copies]
    return Append(DEAD_LETTERS + group, 0, encode(_columns(copies, stored_at_us, headers)))


def _append(topic: str, queue: int, tried: Sequence[Tried], now_us: int) -> Append:
    headers = [{**entry.message.headers, HEADER: _told(entry)} for entry in tried]
    return Append(topic, queue, encode(_columns([entry.message for entry in tried], [now_us], headers)))


def _columns(
    messages: Sequence[ReceivedMessage], stored_at_us: Sequence[int], headers: Sequence[Mapping[str, str]]
) -> FrameColumns:
    return FrameColumns(
        body=[message.body for message in messages],
        stored_at_us=stored_at_us,
        transaction_id=b"".join(message.id_bytes for message in messages),
        n=[message.n for message in messages],
        born_at_us=[message.born_at_us for message in messages],
        key=[message.key or "" for message in messages],
        tag=[message.tag or "" for message in messages],
        ordering_key=[message.ordering_key or "" for message in messages],
        headers=[pack_headers(pairs) for pairs in headers],
    )


def _told(tried: Tried) -> str:
    message = tried.message
    return json.dumps(
        {
            "topic": message.topic,
            "queue": message.queue,
            "offset": message.offset,
            "stored_at_us": message.stored_at_us,
            "attempt": message.attempt,
            "generation": message.generation,
            "due_at_us": tried.due_at_us,
            "errors": tried.errors,
        }
    )


def tried_of(copy: ReceivedMessage) -> Tried:
    """Return the message that a copy in %RETRY%GROUP or %DLQ%GROUP is of. Raises CorruptLog for anything else."""
    headers = dict(copy.headers)
    try:
        told = json.loads(headers.pop(HEADER))
        message = copy._replace(
            topic=told["topic"],
            queue=told["queue"],
            offset=told["offset"],
            stored_at_us=told["stored_at_us"],
            attempt=told["attempt"],
            generation=told["generation"],
            headers=headers,
        )
        if not is_time(message.stored_at_us):
            raise ValueError(strange_time(message.stored_at_us))
        return Tried(message, tuple(told["errors"]), told["due_at_us"])
    except (AttributeError, KeyError, TypeError, ValueError) as exc:
        raise CorruptLog(
            f"offset {copy.offset} of topic {copy.topic} queue {copy.queue} is not a copy of a failed message: header "
            f"{HEADER} is missing or invalid ({exc})"
        ) from exc
