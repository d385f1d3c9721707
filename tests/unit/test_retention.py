"""Retention without a database: dropped, kept and closed segments."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from txmsg.broker.config import BrokerConfig
from txmsg.broker.retention import RetentionVerdict, past_their_time, verdict
from txmsg.broker.segments import is_full
from txmsg.broker.store.segments import Pin, SegmentRow
from txmsg.errors import MisuseError
from txmsg.message import Offset, QueueNumber

GIB = 1024**3
DAY_S = 86_400.0
_OPENED = datetime(2026, 5, 1, tzinfo=UTC)
CONFIG = BrokerConfig(
    storage="", retention_s=7 * DAY_S, retention_max_s=30 * DAY_S, retention_size_bytes=10 * GIB, segments_max=20
)


def closed(*ages_s: float, size_bytes: int = 0) -> list[SegmentRow]:
    """Return closed segments of these ages, and an open one."""
    rows = [SegmentRow(place, "closed", False, _OPENED, age_s, size_bytes) for place, age_s in enumerate(ages_s, 1)]
    return [*rows, SegmentRow(len(rows) + 1, "open", False, _OPENED, 0.0, size_bytes)]


def pin(unread: str = "keep") -> Pin:
    return Pin("group mailer", "orders", QueueNumber(0), unread, Offset(5), Offset(9), 5)


def past(kept: list[SegmentRow]) -> list[int]:
    return [each.id for each in past_their_time(kept, CONFIG)]


def test_closed_segments_are_deleted_by_age_from_the_oldest() -> None:
    assert past(closed(9 * DAY_S, 8 * DAY_S, 6 * DAY_S, 1.0)) == [1, 2]


def test_the_open_segment_and_the_one_before_it_are_never_deleted() -> None:
    assert past(closed(99 * DAY_S, size_bytes=99 * GIB)) == []
    assert past(closed(99 * DAY_S, 99 * DAY_S, size_bytes=99 * GIB)) == [1]
    assert past(closed()) == []


def test_segments_are_deleted_by_size_until_the_rest_fits() -> None:
    assert past(closed(4.0, 3.0, 2.0, 1.0, size_bytes=3 * GIB)) == [1, 2], "15 GiB, then 12, then 9"
    assert past(closed(4.0, 3.0, 2.0, 1.0, size_bytes=2 * GIB)) == []


def test_no_segment_is_deleted_before_an_older_one() -> None:
    """After a backward clock step ages disagree with the order; gaps in a queue would stop its readers."""
    assert past(closed(1.0, 99 * DAY_S, 1.0, 1.0)) == []


@pytest.mark.parametrize(
    ("age_s", "pins", "expected"),
    [
        (8 * DAY_S, [], RetentionVerdict.DROP),
        (8 * DAY_S, [pin("drop")], RetentionVerdict.WAIT),
        (8 * DAY_S, [pin("keep")], RetentionVerdict.WAIT),
        (31 * DAY_S, [], RetentionVerdict.DROP),
        (31 * DAY_S, [pin("drop"), pin("drop")], RetentionVerdict.DROP_UNREAD),
        (31 * DAY_S, [pin("drop"), pin("keep")], RetentionVerdict.KEEP),
    ],
)
def test_unread_messages_are_waited_for_then_dropped_or_kept_by_topic_setting(
    age_s: float, pins: list[Pin], expected: RetentionVerdict
) -> None:
    assert verdict(closed(age_s)[0], pins, CONFIG) is expected


# ---- closing


def opened(age_s: float, size_bytes: int, *, before: int = 1) -> list[SegmentRow]:
    """Return a segment that has been open for age_s, after so many closed ones."""
    return [*closed(*[1.0] * before)[:-1], SegmentRow(before + 1, "open", False, _OPENED, age_s, size_bytes)]


def test_a_segment_is_closed_by_age_or_size_once_its_outcomes_may_be_forgotten() -> None:
    assert not is_full(opened(3599.0, 0), CONFIG)
    assert is_full(opened(3600.0, 0), CONFIG)
    assert is_full(opened(600.0, 4 * GIB), CONFIG)
    assert is_full(opened(600.0, 1 * GIB), CONFIG), "a tenth of retention_size_bytes"
    assert not is_full(opened(600.0, 1 * GIB - 1), CONFIG)
    assert not is_full(opened(599.0, 99 * GIB), CONFIG)


def test_segments_are_closed_later_as_their_number_grows_towards_its_bound() -> None:
    kept, hours = 1, 0.0
    while kept < CONFIG.segments_max and hours < 10_000:
        hours += 1
        age_s = hours * 3600.0
        if is_full(opened(age_s, 0, before=kept - 1), CONFIG):
            kept, hours = kept + 1, 0.0
    assert kept == CONFIG.segments_max
    assert not is_full(opened(10_000 * DAY_S, 99 * GIB, before=kept - 1), CONFIG)


def test_a_month_of_unread_hourly_segments_stays_below_the_bound() -> None:
    config = BrokerConfig(storage="")
    kept, age_s = 1, 0.0
    for _ in range(30 * 24):
        age_s += 3600.0
        if is_full(opened(age_s, 0, before=kept - 1), config):
            kept, age_s = kept + 1, 0.0
    assert 100 < kept < config.segments_max


def test_contradicting_settings_are_refused() -> None:
    with pytest.raises(MisuseError, match="raise retention_max_s"):
        BrokerConfig(storage="", retention_s=DAY_S, retention_max_s=DAY_S - 1)
    with pytest.raises(MisuseError, match="retention_size_bytes=-1 is not a size from 0 to"):
        BrokerConfig(storage="", retention_size_bytes=-1)
    with pytest.raises(MisuseError, match="from 4 to"):
        BrokerConfig(storage="", segments_max=3)
