"""Parts of the lottery without processes: arrival of users, the page, and the verifier."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from examples.lottery.figures import Moment
from examples.lottery.page import shown
from examples.lottery.verify import Verdict, compare
from txmsg.ops.demo.latency import Latency, latency_of
from txmsg.ops.demo.lottery.burst import arrivals
from txmsg.ops.demo.lottery.lottery_run import LotteryPlan

MIDNIGHT = datetime(2026, 12, 12, tzinfo=UTC)


def moment(second: int, entered: int, printed: int, p99_ms: int | None = None) -> Moment:
    at = MIDNIGHT + timedelta(seconds=second)
    return Moment(second=at, entered=entered, printed=printed, p50_ms=p99_ms, p99_ms=p99_ms, at=at)


def test_all_users_arrive_in_order_and_most_of_them_early() -> None:
    moments = list(arrivals(1000, 10.0))
    assert len(moments) == 1000
    assert moments == sorted(moments)
    assert moments[0] == 0
    assert 9 < moments[-1] < 10
    assert sum(each < 5 for each in moments) > 700


def test_the_page_shows_every_second_even_without_entries() -> None:
    figures = shown([moment(0, 10, 2, 30), moment(1, 50, 12, 40), moment(3, 60, 60)])
    assert figures["seconds"] == {
        "from": int(MIDNIGHT.timestamp()),
        "entered": [10, 40, 0, 10],
        "printed": [2, 10, 0, 48],
        "p50": [30, 40, None, None],
        "p99": [30, 40, None, None],
        "backlog": [8, 38, 38, 0],
    }
    assert (figures["backlog"], figures["backlog_max"], figures["p99_ms"]) == (0, 38, 40)


def test_the_page_shows_nothing_before_the_first_second() -> None:
    figures = shown([])
    assert figures["entered"] is None
    assert figures["seconds"]["entered"] == []


def test_printers_fall_behind_during_the_burst() -> None:
    plan = LotteryPlan(users=5000, seconds=10)
    printed_per_s = 2 * 4 * 1000 / plan.print_ms
    assert printed_per_s == pytest.approx(0.4 * 5000 / 10)


def test_percentiles_are_measured_values() -> None:
    assert latency_of(range(1, 101)) == Latency(p50=50, p99=99)
    assert latency_of([7.04]) == Latency(p50=7.0, p99=7.0)
    assert latency_of([]) == Latency(p50=0.0, p99=0.0)


ENTRIES = {1: "a", 2: "b", 3: "c"}
TICKETS = [(3, "c"), (1, "a"), (2, "b")]


def wrong(verdict: Verdict) -> tuple[int, int, int, int]:
    return verdict.missing, verdict.duplicated, verdict.phantom, verdict.in_doubt


def test_the_verifier_reports_nothing_for_consistent_data() -> None:
    verdict = compare(3, ENTRIES, TICKETS, 0)
    assert verdict.clean
    assert (verdict.users, verdict.tickets, verdict.findings) == (3, 3, [])


def test_the_verifier_finds_missing_tickets_and_missing_entries() -> None:
    verdict = compare(4, ENTRIES, TICKETS[1:], 0)
    assert wrong(verdict) == (2, 0, 0, 0)
    assert verdict.findings == ["user 4 has not entered", "user 3 has entered and has no ticket"]


def test_the_verifier_finds_duplicate_tickets() -> None:
    verdict = compare(3, ENTRIES, [*TICKETS, (2, "b"), (2, "b")], 0)
    assert wrong(verdict) == (0, 2, 0, 0)
    assert verdict.findings == ["user 2 has 3 tickets"]


def test_the_verifier_finds_a_ticket_for_a_rolled_back_entry() -> None:
    verdict = compare(3, ENTRIES, [(3, "rolled back"), *TICKETS[1:]], 0)
    assert wrong(verdict) == (0, 0, 1, 0)
    assert verdict.findings == ["user 3 has a ticket for an entry that is not there"]


def test_the_verifier_finds_unknown_users_and_undecided_transactions() -> None:
    verdict = compare(2, ENTRIES, TICKETS, 1)
    assert wrong(verdict) == (0, 0, 1, 1)
    assert verdict.findings == ["user 3 has entered and never asked", "1 transactions are undecided"]
    assert not verdict.clean
