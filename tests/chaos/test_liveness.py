"""The judge of liveness: items unchanged for too long are named, and progressing ones are not."""

from __future__ import annotations

from dataclasses import replace

from tests.chaos.judge import judge
from tests.chaos.liveness import LIVE_ORDERED_S, Standstill, StandstillTracker, Waiting
from tests.chaos.sample import sample


def test_standstill_is_measured_from_its_first_observation() -> None:
    standing = StandstillTracker()
    for now in range(50):
        standing.look([Waiting("queue 0", "offset 3"), Waiting("queue 1", f"offset {now // 10}")], float(now))
    assert standing.over() == [Standstill("queue 0 at offset 3", 49.0, 49.0)]
    assert standing.longest["queue 1"].for_s == 9.0


def test_standstill_restarts_after_progress_or_absence() -> None:
    standing = StandstillTracker(late_s_max=60.0)
    standing.look([Waiting("a", "1"), Waiting("b", "1")], 0.0)
    standing.look([Waiting("a", "1")], 30.0)
    standing.look([Waiting("a", "2"), Waiting("b", "1")], 50.0)
    standing.look([Waiting("a", "2"), Waiting("b", "1")], 60.0)
    assert standing.worst() == [Standstill("a at 1", 30.0, 30.0), Standstill("b at 1", 10.0, 60.0)]
    assert standing.over() == []


def test_standstill_excludes_time_while_the_database_is_down_or_the_watch_is_late() -> None:
    standing = StandstillTracker(begun=100.0, late_s_max=1.0)
    standing.look([Waiting("a", "1")], 101.0)
    standing.miss(130.0)
    standing.look([Waiting("a", "1")], 131.0)
    standing.look([Waiting("a", "1")], 150.0)
    assert standing.worst() == [Standstill("a at 1", 1.0 + 2.0, 50.0)]


def test_ordered_topics_have_a_longer_bound_during_faults() -> None:
    standing = StandstillTracker()
    for now in range(130):
        standing.look(
            [Waiting("ordered", "1", is_ordered=True), Waiting("ordered too", str(now > 100), True)], float(now)
        )
    assert standing.over() == [Standstill("ordered at 1", 129.0, 129.0, LIVE_ORDERED_S)]


def test_ordered_topics_have_the_usual_bound_after_the_faults() -> None:
    standing = StandstillTracker()
    for now in range(142):
        standing.look([Waiting("ordered", "1", is_ordered=True), Waiting("other", str(now // 30))], float(now))
        if now == 100:
            standing.calm()
    assert standing.over() == [Standstill("ordered at 1", 41.0, 141.0)]


def test_standstill_is_a_violation() -> None:
    record = replace(sample(), stands=[Standstill("retry of offset 3 in queue 0 of t for group g", 61.0, 90.0)])
    assert [(each.invariant, each.text.partition(":")[0]) for each in judge(record)] == [
        ("live", "retry of offset 3 in queue 0 of t for group g stood for 61 s, until second 90 of the run")
    ]
