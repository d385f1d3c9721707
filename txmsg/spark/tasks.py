"""Cuts a read into tasks, and a backlog into batches. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import pairwise
from typing import Final, NamedTuple

from txmsg.metaq.interface import LogQueue

_PACKED: Final = 20_000
"""Maximum messages of a task that reads several queues: starting a task costs as much as reading so many."""
_GAPS_MAX: Final = 16
"""Maximum gaps in one batch that are made up for. With more, the batch has fewer messages than it may have."""


class QueuePart(NamedTuple):
    """A range of a queue's messages: from `begin` up to, and without, `end`."""

    queue: LogQueue
    begin: int
    end: int

    @property
    def size(self) -> int:
        """The number of messages if none is missing."""
        return self.end - self.begin


def cut_into_tasks(parts: Iterable[QueuePart], *, min_tasks: int, size_max: int) -> list[tuple[QueuePart, ...]]:
    """Return the tasks for these parts: large parts split into equal pieces, small ones together. Skips empty ones."""
    wanted = [part for part in parts if part.size > 0]
    total = sum(part.size for part in wanted)
    share = -(-total // min_tasks)
    if share * (min_tasks - 1) >= total:  # so few messages that rounding up leaves the last tasks without any
        share = total // min_tasks
    size_max = max(1, min(size_max, share))
    packed_max = min(size_max, _PACKED)
    tasks: list[list[QueuePart]] = []
    room = 0
    for part in wanted:
        for piece in _pieces(part, size_max):
            if piece.size > room:
                tasks.append([])
                room = packed_max
            tasks[-1].append(piece)
            room -= piece.size
    return [tuple(task) for task in tasks]


def _pieces(part: QueuePart, size_max: int) -> Iterable[QueuePart]:
    count = -(-part.size // size_max)
    cuts = [part.begin + part.size * n // count for n in range(count + 1)]
    return (QueuePart(part.queue, begin, end) for begin, end in pairwise(cuts))


def limited(
    begins: Mapping[LogQueue, int],
    ends: Mapping[LogQueue, int],
    count_max: int,
    gap_at: Callable[[LogQueue, int], tuple[int, int] | None],
) -> dict[LogQueue, int]:
    """Return the end of a batch of about count_max messages in each queue.

    Every queue with a backlog advances by one message at least, and otherwise by the same share of its backlog, so that
    event times of queues stay near each other while a stream catches up. Not more than count_max, or one of each queue.

    gap_at: the gap in a queue that contains an offset, from its first offset to the one after its last, if any. A piece
    that would end in a gap ends after it, and the gap's part of the limit goes to the messages behind it.
    """
    at, left = dict(begins), count_max
    found = _shared(at, ends, left, at)
    for _ in range(_GAPS_MAX):
        gaps = {
            queue: gap
            for queue, end in found.items()
            if at[queue] < end < ends[queue] and (gap := gap_at(queue, end)) is not None
        }
        if not gaps:
            break
        for queue, (begin, end) in gaps.items():
            left -= max(0, begin - at[queue])
            at[queue] = min(end, ends[queue])
        first = {queue for queue in at if at[queue] == begins[queue]}  # the others have advanced already
        found = _shared(at, ends, left, first) if left > 0 else found | {queue: at[queue] for queue in gaps}
        if left <= 0:
            break
    return found


def _shared(
    begins: Mapping[LogQueue, int], ends: Mapping[LogQueue, int], count_max: int, first: Collection[LogQueue]
) -> dict[LogQueue, int]:
    """Return the ends for queues without gaps. first: queues that advance by one message at least."""
    waiting = {queue: end - begins[queue] for queue, end in ends.items() if end > begins[queue]}
    total = sum(waiting.values())
    if total <= count_max:
        return dict(ends)
    least = {queue: int(queue in first) for queue in waiting}
    granted = sum(least.values())
    shared, more = max(0, count_max - granted), max(1, total - granted)
    return {
        queue: begins[queue] + least[queue] + (waiting[queue] - least[queue]) * shared // more
        if queue in waiting
        else end
        for queue, end in ends.items()
    }
