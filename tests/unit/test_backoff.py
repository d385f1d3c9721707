"""The backoff of failed messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from txmsg.runtime.backoff import Backoff


def test_retry_delays_are_those_of_the_docs() -> None:
    page = " ".join((Path(__file__).resolve().parents[2] / "docs" / "how-to" / "retries.md").read_text().split())
    first = ", ".join(f"{Backoff().delay_s(attempt):g} s" for attempt in range(1, 5))
    least_s, most_s = Backoff().delay_s(5), Backoff().delay_s(14)
    assert least_s
    assert most_s
    minutes = f"{least_s / 60:g} to {most_s / 60:g} minutes"
    assert f"after {first}, {minutes} and so on, up to {Backoff().retries_max} times" in page


def test_each_retry_is_later_than_the_one_before_until_the_message_is_a_dead_letter() -> None:
    backoff = Backoff()
    delays = [delay_s for attempt in range(1, 17) if (delay_s := backoff.delay_s(attempt)) is not None]
    assert len(set(delays)) == 16
    assert delays == sorted(delays)
    assert backoff.delay_s(17) is backoff.delay_s(1000) is None


def test_last_delay_repeats_when_there_are_more_retries_than_delays() -> None:
    backoff = Backoff(delays_s=(1.0, 2.0), retries_max=4)
    assert [backoff.delay_s(attempt) for attempt in range(1, 6)] == [1, 2, 2, 2, None]


@pytest.mark.parametrize(("asked_s", "given_s"), [(0.0, 0.0), (42.5, 42.5), (-3.0, 0.0), (1e9, 7 * 86400.0)])
def test_a_consumer_may_request_a_retry_delay_within_bounds(asked_s: float, given_s: float) -> None:
    assert Backoff().delay_s(3, asked_s) == given_s


@pytest.mark.parametrize(("asked_s", "given_s"), [(0.001, 10.0), (10.0, 10.0), (42.5, 42.5), (1e9, 7 * 86400.0)])
def test_a_consumer_may_request_a_minimum_retry_delay(asked_s: float, given_s: float) -> None:
    assert Backoff().delay_s(3, asked_s, is_least=True) == given_s


def test_a_requested_delay_does_not_add_retries() -> None:
    assert Backoff().delay_s(17, 1.0) is None


def test_zero_retries_means_dead_letter_at_once() -> None:
    assert Backoff(retries_max=0).delay_s(1) is None


@pytest.mark.parametrize("wrong", [{"delays_s": ()}, {"delays_s": (1.0, -1.0)}, {"retries_max": -1}])
def test_invalid_backoff_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="must"):
        Backoff(**wrong)  # type: ignore[arg-type]
