"""A short run under faults, and a planted defect, to see that the verdict can fail. More: `make chaos`."""

from __future__ import annotations

import pytest

from tests.chaos import guest_java
from tests.chaos.guests import JAVA, LANGUAGES, PYTHON
from tests.chaos.judge import LIVE, Violation
from tests.chaos.plan import Kind
from tests.chaos.plant import chosen
from tests.chaos.run import Result, play
from tests.preloaded import HOW_TO_INSTALL_CC, compiler

DURATION_S = 12.0
SEED = 3
RUNS_MAX = 5


def wrong(result: Result) -> list[Violation]:
    """Return all violations but standstills, which `make chaos` reports on an idle machine."""
    return [each for each in result.violations if each.invariant != LIVE]


@pytest.mark.long  # each fault by itself has quick tests in tests/acceptance
@pytest.mark.timeout(600)  # of a machine that is busy with the rest of the suite; it takes about 25 s
def test_cluster_under_faults_keeps_every_guarantee(database_url: str) -> None:
    result = play(seed=SEED, duration_s=DURATION_S, rate_per_s=100, business_url=database_url)
    assert wrong(result)[:5] == [], f"{len(result.violations)} in all; journals and logs: {result.kept}"
    assert result.missing == []
    assert result.counts["committed"] > 20
    assert result.counts["redeliveries"] > 0
    assert result.counts["chain_shipping"] > 0
    assert result.counts["left"] == 0


@pytest.mark.long  # tests/unit/test_outbox.py has each step
@pytest.mark.timeout(600)
def test_calls_with_an_outbox_succeed_while_all_brokers_are_down(database_url: str) -> None:
    result = play(seed=SEED, duration_s=2, rate_per_s=100, business_url=database_url, away_s=8, without=set(Kind))
    assert wrong(result)[:5] == [], f"{len(result.violations)} in all; journals and logs: {result.kept}"
    assert result.counts["kept_while_away"] > 50
    assert result.counts["left"] == 0


@pytest.mark.long
@pytest.mark.timeout(900)  # it takes about a minute; see the first one
def test_rocketmq_clients_get_the_same_guarantees(database_url: str) -> None:
    """Both languages at once, each with a producer and a consumer; only Python without a JDK.

    Each has sent, been asked and received before faults begin: on that the run waits.
    """
    languages = LANGUAGES if guest_java.is_installed() else [PYTHON]
    result = play(seed=SEED, duration_s=DURATION_S, rate_per_s=50, business_url=database_url, guests=languages)
    assert wrong(result)[:5] == [], f"{len(result.violations)} in all; journals and logs: {result.kept}"
    assert result.missing == []
    assert result.counts["left"] == 0
    if JAVA in languages:
        kinds = ("sends", "halves", "checks", "pushed", "pulled", "producer", "consumer")
        assert [kind for kind in kinds if not result.counts[f"java_guest_{kind}"]] == []


@pytest.mark.long  # test_judge.py tests the verdict on each defect, on histories written by hand
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["lost", "relay", "overtake", "hasty", "unflushed"])
def test_planted_defect_is_found_and_named(kind: str) -> None:
    """In one of a few short runs: a defect does not always do harm within seconds."""
    plant = chosen(kind)
    without = set(Kind) if plant.needs_away or plant.needs_guests else set()
    if kind == "unflushed":
        if compiler() is None:
            pytest.skip(HOW_TO_INSTALL_CC)
        without = set(Kind) - {Kind.POWER_LOSS}  # by which alone it is found
    named: set[str] = set()
    for seed in range(SEED, SEED + RUNS_MAX):
        result = play(seed=seed, duration_s=2, rate_per_s=100, plant=plant, without=without)
        named |= {each.invariant for each in result.violations}
        if plant.invariants & named:
            return
    pytest.fail(f"{plant.invariants} in none of {RUNS_MAX} runs, but {named}")
