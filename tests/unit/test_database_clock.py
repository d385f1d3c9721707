"""Conclusions of a broker from the database clock and its own: clock steps and silent brokers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from txmsg.broker.cluster.clock import DatabaseClock, Heartbeats

HOUR_S = 3600.0
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_a_clock_step_in_either_direction_is_reported_once() -> None:
    clock = DatabaseClock()
    assert [clock.note(1_000_000 + at, at, at + 0.1) for at in (10.0, 11.0, 12.0)] == [0, 0, 0]
    assert abs(clock.note(1_000_000 + 13 + HOUR_S, 13.0, 13.1) - HOUR_S) < 0.3
    assert clock.note(1_000_000 + 14 + HOUR_S, 14.0, 14.1) == 0
    assert abs(clock.note(1_000_000 + 15, 15.0, 15.1) + HOUR_S) < 0.3
    assert clock.note(1_000_000 + 16, 16.0, 16.1) == 0


def test_neither_a_slow_answer_nor_a_fast_clock_is_a_step() -> None:
    clock = DatabaseClock()
    clock.note(1_000.0, 10.0, 10.1)
    assert clock.note(1_001.0, 11.0, 15.0) == 0, "it was read at some time of these four seconds"
    assert clock.note(1_005.5, 16.0, 16.1) == 0
    now_s, at = 1_005.5, 16.0
    for _ in range(100):
        now_s, at = now_s + 1.5, at + 1.0
        assert clock.note(now_s, at, at + 0.1) == 0


def test_a_forward_step_is_remembered_and_a_backward_step_is_not() -> None:
    clock = DatabaseClock()
    clock.note(1_000.0, 10.0, 10.1)
    clock.note(900.0, 11.0, 11.1)
    assert not clock.was_set_forward(11.1, 60.0)
    clock.note(1_001.0, 12.0, 12.1)
    assert clock.was_set_forward(72.0, 60.0)
    assert not clock.was_set_forward(72.2, 60.0)


def test_a_broker_is_silent_when_its_row_does_not_change_whatever_its_time() -> None:
    beats = Heartbeats(5.0)
    tomorrow = NOON + timedelta(days=1)
    beats.note([("a", NOON), ("b", tomorrow)], 100.0)
    beats.note([("a", NOON - timedelta(hours=1)), ("b", tomorrow)], 103.0)
    assert beats.silent(105.0) == {}
    beats.note([("a", NOON - timedelta(hours=1)), ("b", tomorrow)], 105.5)
    assert beats.silent(105.5) == {"b": tomorrow}
    beats.note([("a", NOON)], 120.0)
    assert beats.silent(121.0) == {}, "b is gone, and a has sent one"
