"""The plan of the faults: as many as required, and the same for the same seed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from tests.chaos.chain_verdict import STEPS
from tests.chaos.plan import (
    BROKERS,
    GATEWAYS,
    LATE_S_MAX,
    OF_GATEWAYS,
    OF_GUEST_CONSUMERS,
    OF_GUEST_PRODUCERS,
    SERVICE_KILLS,
    Done,
    Kind,
    Moment,
    Standby,
    faults,
    missing,
)


def _done(seed: int, duration_s: float, *, guests: bool = False) -> list[Done]:
    """Return the faults as if all had been committed in time."""
    return [
        Done(fault=each, began=each.at_s, ended=each.at_s + each.for_s, moment=each.moment)
        for each in faults(seed, duration_s, guests=guests)
    ]


@pytest.mark.parametrize("guests", [False, True])
@pytest.mark.parametrize("duration_s", [12, 60, 120, 300, 330])
def test_each_plan_has_the_required_faults(duration_s: float, guests: bool) -> None:
    for seed in range(100):
        assert missing(_done(seed, duration_s, guests=guests), 0.0, duration_s, guests=guests) == [], seed


def test_each_gateway_and_client_of_rocketmq_is_disturbed_in_each_minute() -> None:
    kinds = {*OF_GATEWAYS, *OF_GUEST_PRODUCERS, *OF_GUEST_CONSUMERS}
    found = [(each.kind, each.target, each.at_s // 60) for each in faults(5, 120, guests=True) if each.kind in kinds]
    assert set(found) == {(kind, target, minute) for kind in kinds for target in range(GATEWAYS) for minute in (0, 1)}
    assert faults(5, 120) == [each for each in faults(5, 120, guests=True) if each.kind not in kinds]
    assert missing(_done(5, 60), 0.0, 60, guests=True) == [f"never: {kind.value}" for kind in Kind if kind in kinds]


def test_each_service_of_the_chain_is_killed_in_each_minute() -> None:
    killed = Counter((each.target, each.at_s // 60) for each in faults(5, 120) if each.kind is Kind.SERVICE)
    assert killed == {(service, minute): SERVICE_KILLS for service in range(len(STEPS)) for minute in (0, 1)}
    rest = [each for each in _done(5, 60) if each.fault.kind is not Kind.SERVICE]
    assert missing(rest, 0.0, 60) == ["never: service of the chain killed"]
    assert missing(rest, 0.0, 60, without=[Kind.SERVICE]) == []


def test_missing_fault_is_reported() -> None:
    full = _done(3, 120)
    for kind, word in ((Kind.KILL, "killed"), (Kind.PAUSE, "paused")):
        for broker in range(BROKERS):
            for minute in range(2):
                rest = [
                    each
                    for each in full
                    if (each.fault.kind, each.fault.target, each.began // 60) != (kind, broker, minute)
                ]
                assert f"broker {broker} was not {word} in minute {minute + 1}" in missing(rest, 0.0, 120)
    cuts = {Kind.CUT_CLIENTS, Kind.CUT_DATABASE}
    assert "no broker was cut off" in missing([each for each in full if each.fault.kind not in cuts], 0.0, 120)
    for moment in (Moment.BATCH, Moment.ASSIGNMENT):
        missed = [replace(each, moment=Moment.ANY) if each.moment is moment else each for each in full]
        told = missing(missed, 0.0, 120)
        assert told == [
            f"no broker was paused in the middle of {'a' if moment is Moment.BATCH else 'an'} {moment.name.lower()}"
        ]


def test_leaving_out_one_fault_kind_keeps_the_others_unchanged() -> None:
    full = faults(5, 120)
    assert faults(5, 120, without=[Kind.CLOCK]) == [each for each in full if each.kind is not Kind.CLOCK] != full
    rest = [each for each in _done(5, 120) if each.fault.kind is not Kind.CLOCK]
    assert missing(rest, 0.0, 120) == ["never: clock of the database stepped"]
    assert missing(rest, 0.0, 120, without=[Kind.CLOCK]) == []


def test_each_minute_promotes_a_standby_that_lacks_some_transactions() -> None:
    for seed in range(50):
        for minute in range(2):
            promoted = [
                each.standby for each in faults(seed, 120) if each.kind is Kind.PROMOTE and each.at_s // 60 == minute
            ]
            assert len(promoted) == 2
            assert set(promoted) != {Standby.CLOSE}


def test_fault_started_much_too_late_does_not_count() -> None:
    late = [replace(each, began=each.began + LATE_S_MAX) for each in _done(3, 60)]
    assert "broker 0 was not killed in minute 1" in missing(late, 0.0, 60)


def test_same_seed_gives_the_same_plan() -> None:
    assert faults(4711, 300) == faults(4711, 300) != faults(4712, 300)
