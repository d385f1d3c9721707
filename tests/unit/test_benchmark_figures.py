"""Figures of benchmarks, and series of them that are reported as different: planted differences are found."""

from __future__ import annotations

import random

import pytest

from benchmarks.figures import RUNS_MIN, WITHIN_NOISE, Comparison, compare, figures_of, p_of_ranks


def series(chance: random.Random, around: float, noise: float, runs: int = RUNS_MIN) -> list[float]:
    return [around * chance.gauss(1, noise) for _ in range(runs)]


def verdicts(shift: float, noise: float, *, runs: int = RUNS_MIN, figures: int = 200) -> list[str]:
    chance = random.Random(4711)
    return [
        compare("p50_ms", series(chance, 100, noise, runs), series(chance, 100 * shift, noise, runs)).verdict
        for _ in range(figures)
    ]


@pytest.mark.parametrize("runs", [RUNS_MIN, 8])
@pytest.mark.parametrize("noise", [0.02, 0.1, 0.3])
def test_noise_is_reported_as_a_difference_in_at_most_one_percent_of_figures(noise: float, runs: int) -> None:
    found = verdicts(1.0, noise, runs=runs)

    assert found.count(WITHIN_NOISE) >= 0.99 * len(found)


def test_figure_that_takes_20_percent_longer_is_reported_as_slower() -> None:
    found = verdicts(1.2, 0.04)

    assert found.count("slower") > 0.97 * len(found)
    assert "faster" not in found


def test_more_runs_find_a_difference_that_few_runs_do_not() -> None:
    few, many = verdicts(1.2, 0.12, figures=40), verdicts(1.2, 0.12, runs=15, figures=40)

    assert few.count("slower") < 0.5 * len(few)
    assert many.count("slower") > 0.8 * len(many)


def test_alternating_slowdown_of_the_machine_is_not_reported() -> None:
    times = [100 * 1.05**place for place in range(20)]  # old, new, new, old, ...
    old = [value for place, value in enumerate(times) if place % 4 in (0, 3)]
    new = [value for place, value in enumerate(times) if place % 4 in (1, 2)]

    assert compare("p50_ms", old, new).verdict == WITHIN_NOISE


def test_difference_below_5_percent_is_not_reported_however_certain() -> None:
    assert compare("p50_ms", [100, 100.1, 100.2, 100.3, 100.4], [104, 104.1, 104.2, 104.3, 104.4]).verdict == (
        WITHIN_NOISE
    )


def test_one_disturbed_run_of_nine_does_not_hide_a_difference() -> None:
    old, new = [10.0, 10.1, 10.2, 10.3, 10.4, 10.5, 10.6, 10.7], [14.0, 14.1, 14.2, 14.3, 14.4, 14.5, 14.6, 14.7, 14.8]

    assert compare("p50_ms", [*old, 400.0], new).verdict == "slower"


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("async 256 rate_per_s", "faster"),
        ("cpu_us", "slower"),
        ("latency_p99_ms", "slower"),
        ("deaths SIGKILL send_s", "slower"),
        ("ms_per_s", "slower"),
        ("rows_per_s", "more"),
        ("redis_per_s everysec", "faster"),
        ("broker_rss_mib_max", "larger"),
    ],
)
def test_verdict_on_a_doubled_figure_depends_on_its_unit(name: str, verdict: str) -> None:
    assert compare(name, [1, 2, 3, 4, 5], [20, 21, 22, 23, 24]).verdict == verdict


def test_zero_equals_zero_and_differs_from_other_figures() -> None:
    none, some = [0.0] * 5, [1.0, 2, 3, 4, 5]

    assert compare("failing_per_s", none, none).verdict == WITHIN_NOISE
    assert compare("failing_per_s", none, some).verdict == "more"
    assert compare("failing_per_s", some, none).verdict == "less"


def test_p_is_the_share_of_all_permutations_that_are_as_far_apart() -> None:
    assert p_of_ranks([1, 2, 3, 4, 5], [6, 7, 8, 9, 10]) == pytest.approx(2 / 252)
    assert p_of_ranks([1, 2, 3, 4, 6], [5, 7, 8, 9, 10]) == pytest.approx(4 / 252)
    assert p_of_ranks([1, 1, 1], [1, 1, 1]) == 1
    assert p_of_ranks([1, 1], [1, 2]) == 1


def test_comparison_shows_medians_their_ratio_and_the_wider_quartiles() -> None:
    found = compare("p50_ms", [10, 10, 10, 10, 10], [10, 20, 30, 40, 50])

    assert isinstance(found, Comparison)
    assert (found.old, found.new, found.ratio) == (10, 30, 3)
    assert found.spread == pytest.approx(20 / 30)


def test_figures_are_named_by_their_path_and_the_texts_of_entries() -> None:
    document = {
        "async": {"16": {"callers": 16, "rate_per_s": 5000.5, "sends": 7}},
        "entries": [
            {"database": "sqlite", "callers": 1, "plain_per_s": 1},
            {"database": "sqlite", "callers": 8, "plain_per_s": 2},
        ],
        "redis_per_s": {"everysec": 3, "always": 4},
        "settings": {"fsync": "on"},
        "is_right": True,
        "ratio_256": 0.4,
    }

    assert figures_of(document) == {
        "async 16 rate_per_s": 5000.5,
        "entries sqlite 1 callers plain_per_s": 1,
        "entries sqlite 8 callers plain_per_s": 2,
        "redis_per_s everysec": 3,
        "redis_per_s always": 4,
    }


def test_figures_of_an_array_have_no_name_before_that_of_the_entry() -> None:
    assert figures_of([{"callers": "4 threads", "kind": "decorated", "calls": 3, "cpu_us": 9}]) == {
        "4 threads decorated cpu_us": 9
    }


def test_repeated_entries_count_by_their_median() -> None:
    deaths = [{"how": "SIGKILL", "send_s": value} for value in (1.0, 9.0, 2.0)]

    assert figures_of({"deaths": deaths}) == {"deaths SIGKILL send_s": 2.0}
