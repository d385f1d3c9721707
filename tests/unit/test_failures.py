"""The fate of a message whose handler raised, by the policy of its subscription."""

from __future__ import annotations

import math

import pytest

from tests.errors_page import is_documented
from txmsg import Consumer, MisuseError, Reject, Retry, RetryAfter, Skip
from txmsg.consumer.failures import HandlerFailure


class TooMany(Exception):
    pass


class TooManyOfOne(TooMany):
    pass


RETRY = Retry(
    delays_s=[1, 10, 60],
    retries_max=4,
    by_type={TooMany: Retry(delays_s=[30], retries_max=100), KeyError: Skip, LookupError: Reject},
)


@pytest.mark.parametrize(
    ("exc", "attempt", "expected"),
    [
        (ValueError(), 1, HandlerFailure("why", 1)),
        (ValueError(), 3, HandlerFailure("why", 60)),
        (ValueError(), 4, HandlerFailure("why", 60)),
        (ValueError(), 5, HandlerFailure("why", 60, is_final=True)),
        (TooMany(), 5, HandlerFailure("why", 30)),
        (TooManyOfOne(), 100, HandlerFailure("why", 30)),
        (TooMany(), 101, HandlerFailure("why", 30, is_final=True)),
        (KeyError(), 1, None),
        (IndexError(), 1, HandlerFailure("why", None, is_final=True, is_rejected=True)),
        (Skip(), 5, None),
        (Reject(), 1, HandlerFailure("why", None, is_final=True, is_rejected=True)),
        (RetryAfter(7), 4, HandlerFailure("why", 7)),
        (RetryAfter(7), 5, HandlerFailure("why", 7, is_final=True)),
    ],
)
def test_the_policy_decides_by_exception_and_delivery(
    exc: Exception, attempt: int, expected: HandlerFailure | None
) -> None:
    assert RETRY._failure_of(exc, attempt, "why") == expected


def test_a_policy_for_a_derived_type_takes_precedence() -> None:
    retry = Retry(by_type={LookupError: Retry(delays_s=[7], by_type={KeyError: Reject, TooMany: Skip})})
    assert retry._failure_of(IndexError(), 1, "why") == HandlerFailure("why", 7)
    assert retry._failure_of(KeyError(), 1, "why") == HandlerFailure("why", is_final=True, is_rejected=True)
    assert retry._failure_of(TooMany(), 1, "why") == HandlerFailure("why")  # not of a type in the nested policy


def test_without_a_policy_the_group_decides() -> None:
    assert Retry()._failure_of(ValueError(), 17, "why") == HandlerFailure("why")


def test_jitter_changes_a_delay_by_at_most_its_fraction() -> None:
    retry = Retry(delays_s=[10], jitter=0.2)
    assert [retry._delay_s(1, chance) for chance in (-1, 0, 1)] == [8, 10, 12]
    found = {(retry._failure_of(ValueError(), 1, "") or HandlerFailure("")).delay_s for _ in range(50)}
    assert len(found) > 1
    assert all(delay_s is not None and 8 <= delay_s <= 12 for delay_s in found)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Retry(delays_s=[]),
        lambda: Retry(delays_s=[-1]),
        lambda: Retry(delays_s=[math.nan]),
        lambda: Retry(retries_max=-1),
        lambda: Retry(retries_max=True),
        lambda: Retry(jitter=1.5),
        lambda: Retry(by_type={"ValueError": Reject}),  # type: ignore[dict-item]
        lambda: Retry(by_type={ValueError: 3}),  # type: ignore[dict-item]
        lambda: RetryAfter(-1),
        lambda: RetryAfter(8 * 24 * 3600),
        lambda: Consumer(group="g").subscribe("t", retry=3),  # type: ignore[call-overload]
    ],
)
def test_an_invalid_policy_is_refused_at_once(wrong: object) -> None:
    with pytest.raises(MisuseError) as refused:
        wrong()  # type: ignore[operator]
    assert is_documented(refused.value)
