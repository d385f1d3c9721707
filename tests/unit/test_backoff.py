"""The back-off of failed messages."""

from __future__ import annotations

import pytest

from txmsg.runtime.backoff import DELAYS_S, Backoff


def test_delays_grow_from_a_second_to_two_hours() -> None:
    minutes = [60 * m for m in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30)]
    assert list(DELAYS_S) == [1, 5, 10, 30, *minutes, 3600, 7200]


def test_sixteen_retries_then_dead_letter() -> None:
    backoff = Backoff()
    delays = [backoff.delay_s(attempt) for attempt in range(1, 18)]
    assert delays == [*DELAYS_S[:16], None]
    assert backoff.delay_s(1000) is None


def test_last_delay_repeats_when_there_are_more_retries_than_delays() -> None:
    backoff = Backoff(delays_s=(1.0, 2.0), retries_max=4)
    assert [backoff.delay_s(attempt) for attempt in range(1, 6)] == [1, 2, 2, 2, None]


@pytest.mark.parametrize(("asked_s", "given_s"), [(0.0, 0.0), (42.5, 42.5), (-3.0, 0.0), (1e9, 7 * 86400.0)])
def test_consumer_may_ask_for_a_delay_within_bounds(asked_s: float, given_s: float) -> None:
    assert Backoff().delay_s(3, asked_s) == given_s


@pytest.mark.parametrize(("asked_s", "given_s"), [(0.001, 10.0), (10.0, 10.0), (42.5, 42.5), (1e9, 7 * 86400.0)])
def test_consumer_may_ask_for_a_least_delay(asked_s: float, given_s: float) -> None:
    assert Backoff().delay_s(3, asked_s, is_least=True) == given_s


def test_asking_for_a_delay_does_not_buy_more_retries() -> None:
    assert Backoff().delay_s(17, 1.0) is None


def test_no_retries_means_dead_letter_at_once() -> None:
    assert Backoff(retries_max=0).delay_s(1) is None


@pytest.mark.parametrize("wrong", [{"delays_s": ()}, {"delays_s": (1.0, -1.0)}, {"retries_max": -1}])
def test_senseless_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="must"):
        Backoff(**wrong)  # type: ignore[arg-type]
