"""What filters of a query say about which messages need not be read. Pure."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from txmsg.message import us_of_datetime
from txmsg.metaq.access import QueueId

__all__ = ["Bounds", "bounds_of"]

_NEVER_NULL: Final = frozenset({"topic", "queue", "offset", "value", "born_at", "stored_at"})
_TESTS: Final[dict[type[Filter], Callable[[Any, Any], bool]]] = {
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    In: lambda found, values: found in values,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    StringStartsWith: str.startswith,
    StringEndsWith: str.endswith,
    StringContains: operator.contains,
}


@dataclass(frozen=True, slots=True)
class Bounds:
    """Messages outside are not asked for. Bounds of time are about right: Spark looks at each message again."""

    of_queues: tuple[Filter, ...] = ()
    offset_min: int = 0
    offset_end: int | None = None
    stored_min_us: int | None = None
    stored_max_us: int | None = None

    def wants(self, queue: QueueId) -> bool:
        """Whether messages of this queue may be asked for."""
        return all(_holds(each, queue) for each in self.of_queues)


def bounds_of(filters: Sequence[Filter]) -> tuple[Bounds, list[Filter]]:
    """What all of the filters together leave to be read, and those that Spark has to look at itself."""
    bounds = Bounds()
    left: list[Filter] = []
    for each in filters:
        column = _column(each)
        if isinstance(each, IsNotNull) and column in _NEVER_NULL:
            continue
        if column in {"topic", "queue"} and _is_decided(each):
            bounds = replace(bounds, of_queues=(*bounds.of_queues, each))
        elif column == "offset" and (narrowed := _by_offset(bounds, each)):
            bounds = narrowed
            if isinstance(each, In):
                left.append(each)  # between the least and the greatest there are others
        else:
            if column == "stored_at":
                bounds = _by_time(bounds, each)
            left.append(each)
    return bounds, left


def _column(each: Filter) -> str | None:
    path = _column_path(each.child if isinstance(each, Not) else each)
    return path[0].lower() if len(path) == 1 else None


def _column_path(each: Filter) -> Sequence[str]:
    path: Sequence[str] = getattr(each, "attribute", ())
    return path


# ---- queues


def _is_decided(each: Filter) -> bool:
    """Whether `_holds` can tell."""
    inner = each.child if isinstance(each, Not) else each
    value = getattr(inner, "value", None)
    return type(inner) in _TESTS and value is not None and not (isinstance(inner, In) and None in value)


def _holds(each: Filter, queue: QueueId) -> bool:
    if isinstance(each, Not):
        return not _holds(each.child, queue)
    found = queue.topic if _column(each) == "topic" else queue.queue
    return _TESTS[type(each)](found, getattr(each, "value", None))


# ---- offsets and times


def _by_offset(bounds: Bounds, each: Filter) -> Bounds | None:
    interval = _interval(each, int)
    if interval is None:
        return None
    least, most = interval
    return replace(
        bounds,
        offset_min=max(bounds.offset_min, bounds.offset_min if least is None else least),
        offset_end=_least(bounds.offset_end, None if most is None else most + 1),
    )


def _by_time(bounds: Bounds, each: Filter) -> Bounds:
    interval = _interval(each, datetime)
    if interval is None:
        return bounds
    least, most = (None if end is None or end.tzinfo is None else us_of_datetime(end) for end in interval)
    known = [us for us in (bounds.stored_min_us, least) if us is not None]
    return replace(bounds, stored_min_us=max(known, default=None), stored_max_us=_least(bounds.stored_max_us, most))


def _least(known: int | None, other: int | None) -> int | None:
    return min((each for each in (known, other) if each is not None), default=None)


def _interval(each: Filter, kind: type) -> tuple[Any, Any] | None:
    """The least and the greatest value that a filter lets through, None for no end; None when it says nothing of that.

    Of moments the bound itself is let through as well.
    """
    value: Any = getattr(each, "value", None)
    if isinstance(each, In):
        return (min(value), max(value)) if value and all(_is_of(one, kind) for one in value) else None
    if not _is_of(value, kind):
        return None
    step = 1 if kind is int else timedelta()
    ends: dict[type[Filter], tuple[Any, Any]] = {
        EqualTo: (value, value),
        EqualNullSafe: (value, value),
        GreaterThan: (value + step, None),
        GreaterThanOrEqual: (value, None),
        LessThan: (None, value - step),
        LessThanOrEqual: (None, value),
    }
    return ends.get(type(each))


def _is_of(value: object, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)
