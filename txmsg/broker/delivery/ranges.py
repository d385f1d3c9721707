"""A set of offsets, kept as ranges. Knows nothing of messages."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

__all__ = ["OffsetRanges", "runs"]


def runs(offsets: Iterable[int]) -> Iterator[tuple[int, int]]:
    """The runs [start, end) of offsets that need not be sorted; each offset at most once."""
    in_order = sorted(offsets)
    if not in_order:
        return
    if in_order[-1] - in_order[0] + 1 == len(in_order):  # the usual case: a delivered batch, acknowledged whole
        yield in_order[0], in_order[-1] + 1
        return
    start = end = in_order[0]
    for offset in in_order:
        if offset != end:
            yield start, end
            start = offset
        end = offset + 1
    yield start, end


class OffsetRanges:
    """Disjoint ranges [start, end), in order, neighbours merged. Adding costs a binary search."""

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in ranges:
            self.add(start, end)

    def add(self, start: int, end: int) -> None:
        """Adds [start, end), which may touch or overlap what is there."""
        assert start < end, f"[{start}, {end}) is empty"
        first = bisect_left(self._ends, start)  # the first range that reaches start
        last = bisect_right(self._starts, end)  # after the last range that begins by end
        if first < last:
            start = min(start, self._starts[first])
            end = max(end, self._ends[last - 1])
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]

    def next_missing(self, offset: int) -> int:
        """The first offset from here that is not in the set."""
        at = bisect_right(self._starts, offset) - 1
        return max(offset, self._ends[at]) if at >= 0 else offset

    def drop_below(self, offset: int) -> None:
        """Forgets everything below an offset that does not lie inside a range."""
        count = bisect_right(self._ends, offset)
        assert count == len(self._ends) or self._starts[count] >= offset, f"{offset} lies inside a range"
        del self._starts[:count], self._ends[:count]

    def __contains__(self, offset: int) -> bool:
        return self.next_missing(offset) != offset

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(list(zip(self._starts, self._ends, strict=True)))

    def __len__(self) -> int:
        """How many ranges there are."""
        return len(self._starts)

    def count(self) -> int:
        """How many offsets there are."""
        return sum(self._ends) - sum(self._starts)
