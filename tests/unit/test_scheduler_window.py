"""The window of the scheduler of delayed messages: the due time at which a scan starts."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from txmsg.broker.scheduler import DueWindow
from txmsg.message import datetime_of_us, us_of_datetime

NOON = datetime_of_us(1_800_000_000_000_000)
EARLIER = NOON - timedelta(hours=1)


@pytest.fixture
def window() -> DueWindow:
    """A window whose first scan has reached noon."""
    window = DueWindow()
    with window.begin_scan() as first:
        assert first.since is None
        first.through = NOON
    return window


def begins(window: DueWindow) -> datetime | None:
    """Return the start of the next scan, which finds nothing later."""
    with window.begin_scan() as look:
        look.through = NOON
        return look.since


def test_a_scan_starts_where_the_last_ended_unless_an_earlier_message_was_stored(
    window: DueWindow,
) -> None:
    window.note(us_of_datetime(NOON + timedelta(hours=1)))
    assert begins(window) == NOON
    window.note(us_of_datetime(EARLIER))
    window.note(us_of_datetime(NOON))
    assert begins(window) == EARLIER
    assert begins(window) == NOON


def test_a_failed_scan_is_repeated_from_the_noted_message(window: DueWindow) -> None:
    window.note(us_of_datetime(EARLIER))
    with pytest.raises(ConnectionError), window.begin_scan():
        raise ConnectionError
    assert begins(window) == EARLIER


def test_after_a_database_restore_a_scan_starts_at_the_first_message(window: DueWindow) -> None:
    with window.begin_scan() as look:
        window.forget_window("it was restored")
        look.through = NOON
    assert begins(window) is None
