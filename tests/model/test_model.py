"""The model in the suite: a minute of random histories is clean, and a planted defect of each kind is found."""

from __future__ import annotations

import psycopg
import pytest

from tests.chaos import plant as chaos
from tests.conftest import PostgresServer
from tests.model.explore import Result, explore
from tests.model.plant import PLANTS, Plant

ONE_OF_EACH_KIND = list({plant.defect: plant for plant in reversed(PLANTS)}.values())
"""All of them take minutes: `make model PLANT=all`."""

SEEN = ("crashes", "copies", "checks", "rotations", "outcome_conflict", "times gone back")
HISTORIES_MIN = 12
FIND_S_MAX = 240.0
"""`make model` wants it within a minute; here the machine may be busy with the rest of the suite."""


@pytest.mark.long  # test_a_planted_defect_is_found shows that histories are played and judged
@pytest.mark.timeout(0)  # as long as requested; every wait inside is bounded
async def test_random_histories_keep_the_guarantees(
    postgres: PostgresServer, notify_template: str, request: pytest.FixtureRequest, seed: int
) -> None:
    duration_s: float = request.config.getoption("--model-s")
    result = await explore(postgres, notify_template, duration_s=duration_s, seed=seed, is_enough=_has_seen_all)
    assert result.found is None, result.found.described()
    assert result.counts["deadlocks"] == 0
    assert result.counts["cuts"] > 0
    assert _has_seen_all(result), f"{result.seconds:.0f} s from seed {seed} did not see all: {result.counts}"


def _has_seen_all(result: Result) -> bool:
    """Continue until all kinds of steps were played, however few histories a busy machine plays."""
    return result.counts["histories"] >= HISTORIES_MIN and all(result.counts[what] for what in SEEN)


@pytest.mark.timeout(FIND_S_MAX + 60)
@pytest.mark.parametrize(
    "plant",
    [ONE_OF_EACH_KIND[0], *(pytest.param(plant, marks=pytest.mark.long) for plant in ONE_OF_EACH_KIND[1:])],
    ids=lambda plant: plant.name.replace(" ", "-"),
)
async def test_a_planted_defect_is_found(
    postgres: PostgresServer, notify_template: str, plant: Plant, seed: int
) -> None:
    result = await explore(postgres, notify_template, duration_s=FIND_S_MAX, seed=seed, plant=plant, shrink=False)
    assert result.found is not None, f"not found from seed {seed} in {FIND_S_MAX} s: {result.counts}"


def test_every_planted_defect_matches_the_current_code(notify_url: str) -> None:
    with psycopg.connect(notify_url) as connection:
        sources: dict[str, str] = dict(
            connection.execute(
                "select proname, pg_get_functiondef(oid) from pg_proc where pronamespace = 'txmsg'::regnamespace"
            ).fetchall()
        )
    plants = [*PLANTS, *(plant.of_model for plant in chaos.PLANTS)]
    assert [plant.name for plant in plants if any(old not in sources[name] for name, old, _ in plant.changes)] == []
