"""The offsets that damaged places held: by headers, cells, and the gaps between a queue's frames. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from txmsg.metaq.format.frame import FrameKind
from txmsg.metaq.fsck.queue_check import Gap, QueueCheck
from txmsg.metaq.fsck.report import Lost
from txmsg.metaq.fsck.scan import Region, Scan
from txmsg.metaq.store.state import QueueKey


class _Piece(NamedTuple):
    """Offsets that a damaged place is known to have held."""

    begin: int
    end: int
    region: int


def attribute(damage: Sequence[tuple[Region, list[Lost]]], queues: Mapping[QueueKey, QueueCheck], scan: Scan) -> None:
    """Add to each damaged place the offsets that it has taken with it, at most one range of each queue."""
    regions = [region for region, _ in damage]
    pieces = _pieces(regions, queues)
    for key, queue in queues.items():
        mine = sorted(pieces.get(key, ()))
        lost: dict[int, tuple[int, int]] = {}
        for gap in _gaps(queue, mine, regions, scan):
            for begin, end, region in _divided(gap, mine, regions):
                before = lost.get(region, (begin, end))
                lost[region] = (min(before[0], begin), max(before[1], end))
        for region, (begin, end) in lost.items():
            damage[region][1].append(Lost(*key, begin, end))


def _pieces(regions: Sequence[Region], queues: Mapping[QueueKey, QueueCheck]) -> dict[QueueKey, list[_Piece]]:
    found: dict[QueueKey, list[_Piece]] = {}
    for number, region in enumerate(regions):
        header = region.header
        if header is not None and header.count and header.kind in {FrameKind.MESSAGES, FrameKind.CUT}:
            piece = _Piece(header.base_offset, header.base_offset + header.count, number)
            found.setdefault((header.topic, header.queue), []).append(piece)
    for key, queue in queues.items():
        for base, position, _, count, *_ in queue.named:
            for number, region in enumerate(regions):
                is_last = number == len(regions) - 1
                if region.is_excess:
                    continue
                if region.begin <= position < region.end or (is_last and position >= region.begin):
                    if count:
                        found.setdefault(key, []).append(_Piece(base, base + count, number))
                    break
    return found


def _gaps(queue: QueueCheck, pieces: Sequence[_Piece], regions: Sequence[Region], scan: Scan) -> list[Gap]:
    """Return the gaps between the queue's frames; before the first and behind the last one, the offsets of known
    pieces.
    """
    gaps = list(queue.gaps)
    live = queue.live
    first = int(live["position"][0]) if len(live) else scan.seen
    last = int(live["position"][-1]) if len(live) else -1
    before = [piece for piece in pieces if regions[piece.region].begin < first]
    behind = [piece for piece in pieces if regions[piece.region].begin > last]
    if not len(live):
        if pieces:
            gaps.append(Gap(min(pieces).begin, max(piece.end for piece in pieces), scan.begin, scan.seen + 1))
        return gaps
    begin, end = int(live["base_offset"][0]), int(live["end_offset"][-1])
    if before and (low := min(piece.begin for piece in before)) < begin:
        gaps.append(Gap(low, begin, 0, first))
    if behind and (high := max(piece.end for piece in behind)) > end:
        gaps = [gap for gap in gaps if gap.begin < end or gap.end > high]
        if not any(gap.begin == end for gap in gaps):
            gaps.append(Gap(end, high, last, scan.seen + 1))
    return gaps


def _divided(gap: Gap, pieces: Sequence[_Piece], regions: Sequence[Region]) -> list[_Piece]:
    """Return the gap as consecutive ranges, each in a damaged place; offsets of no known piece belong to the next
    range.
    """
    at, found = gap.begin, list[_Piece]()
    for piece in pieces:
        if at < piece.end <= gap.end:
            found.append(_Piece(at, piece.end, piece.region))
            at = piece.end
    if at < gap.end:
        if found:
            found[-1] = found[-1]._replace(end=gap.end)
        else:
            places = [n for n, region in enumerate(regions) if region.begin < gap.before and region.end >= gap.after]
            found += [_Piece(at, gap.end, places[0])] if places else []
    return found
