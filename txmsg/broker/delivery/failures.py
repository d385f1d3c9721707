"""Writes what became of failed messages: retries made, put off, done, or dead. The caller owns the transaction."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping

from txmsg.broker.delivery.group import Feed, Group
from txmsg.broker.delivery.retrying import Outcome
from txmsg.broker.delivery.settings import GroupSettings
from txmsg.broker.delivery.window import BEHIND, Failure
from txmsg.broker.store import delivery as store
from txmsg.broker.store import retries as failures_store

__all__ = ["clean_error", "write_first_failures", "write_retry_outcomes"]

_log = logging.getLogger(__name__)

_ERROR_LENGTH_MAX = 2000
_ROWS_MAX = 1000  # in one statement: it looks its values up in arrays, which is quadratic


def clean_error(error: str) -> str:
    """An error text as PostgreSQL can store it: no NUL, no lone surrogate, not longer than a person reads."""
    return error.replace("\0", "\\0").encode("utf-8", "replace").decode()[:_ERROR_LENGTH_MAX]


async def write_first_failures(
    conn: store.Connection, feed: Feed, failing: Mapping[int, Failure], settings: GroupSettings
) -> None:
    """Makes retries of messages whose first delivery failed (dead letters, if no retry is allowed), and of those that
    follow their ordering key.

    Repeating it changes nothing. A message whose segment is gone cannot be retried: it is logged as lost.
    """
    spans = await store.segments_of_queue(conn, feed.queue_id)
    bases = [span.base for span in spans]
    by_segment: dict[int, list[failures_store.FirstFailure]] = defaultdict(list)
    for offset, failure in sorted(failing.items()):
        segment = spans[max(bisect_right(bases, offset) - 1, 0)].segment
        if failure is BEHIND:
            by_segment[segment].append((offset, None, None))
        else:
            delay_s = settings.backoff.delay_s(1, failure.delay_s)
            by_segment[segment].append((offset, delay_s or 0.0, clean_error(failure.error)))
    count = 0
    for segment, failures in sorted(by_segment.items()):
        for start in range(0, len(failures), _ROWS_MAX):
            chunk = failures[start : start + _ROWS_MAX]
            count += await failures_store.insert_retries(conn, feed.group.id, segment, feed.queue_id, chunk)
            if settings.backoff.delay_s(1) is None:
                dead = [(offset, 1, error) for offset, _, error in chunk if error is not None]
                await failures_store.bury(conn, feed.group.id, feed.queue_id, dead, parks_keys=settings.parks_keys)
    if count < len(failing):
        await _log_lost(conn, feed, failing)


async def _log_lost(conn: store.Connection, feed: Feed, failing: Mapping[int, Failure]) -> None:
    since = [min(failing)]
    kept = {offset for _, offset in await store.failed_offsets(conn, feed.group.id, [feed.queue_id], since)}
    if lost := sorted(failing.keys() - kept):
        _log.error(
            "group %s failed to process offsets %s of topic %s queue %d, which are not kept any more: no retry",
            *(feed.group.name, lost, feed.topic, feed.number),
        )


async def write_retry_outcomes(
    conn: store.Connection, group: Group, outcomes: Mapping[failures_store.RetryKey, Outcome]
) -> None:
    """Writes the outcomes of retries. Repeating it changes nothing."""
    settings = group.settings
    done: dict[int, list[int]] = defaultdict(list)
    again: dict[int, list[tuple[int, int, float, str]]] = defaultdict(list)
    dead: dict[int, list[tuple[int, int, str]]] = defaultdict(list)
    for (queue_id, offset), (attempt, failure, _) in sorted(outcomes.items(), key=lambda item: item[0]):
        if failure is None:
            done[queue_id].append(offset)
        elif (delay_s := settings.backoff.delay_s(attempt, failure.delay_s)) is None:
            dead[queue_id].append((offset, attempt, clean_error(failure.error)))
        else:
            again[queue_id].append((offset, attempt, delay_s, clean_error(failure.error)))
    for queue_id, offsets in done.items():
        await failures_store.delete_retries(conn, group.id, queue_id, offsets)
    for queue_id, put_off in again.items():
        await failures_store.update_retries(conn, group.id, queue_id, put_off)
    for queue_id, buried in dead.items():
        await failures_store.bury(conn, group.id, queue_id, buried, parks_keys=settings.parks_keys)
