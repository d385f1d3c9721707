"""The transition table of half messages, pair by pair, and the decisions about checks."""

from __future__ import annotations

from pathlib import Path

import pytest

from txmsg.checker.policy import (
    TRANSITIONS,
    CheckDecision,
    CheckPolicies,
    CheckPolicy,
    HalfEvent,
    HalfState,
    decide_after_answer,
    decide_before_check,
    diagram,
)
from txmsg.message import TransactionState

S, E = HalfState, HalfEvent


@pytest.mark.parametrize("final", [S.COMMITTED, S.ROLLED_BACK])
def test_no_event_leads_out_of_a_final_state(final: HalfState) -> None:
    assert set(TRANSITIONS[final].values()) == {final}


@pytest.mark.parametrize("state", [S.STORED, S.IN_CHECK, S.PARKED])
@pytest.mark.parametrize("event", [E.COMMIT, E.ROLLBACK])
def test_an_undecided_half_can_always_be_decided(state: HalfState, event: HalfEvent) -> None:
    assert TRANSITIONS[state][event] in (S.COMMITTED, S.ROLLED_BACK)


def test_the_diagram_in_the_docs_is_drawn_from_the_table() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "architecture.md"
    assert f"```mermaid\n{diagram()}```" in page.read_text(), "draw it anew with txmsg.checker.policy.diagram()"


def test_the_diagram_shows_every_transition_that_changes_the_state() -> None:
    drawn = diagram()
    assert drawn.startswith("stateDiagram-v2\n")
    for state, row in TRANSITIONS.items():
        for event, target in row.items():
            if target is not state:
                edge = f"{state.value} --> {target.value}: ".replace("in check", "in_check").replace(" back", "_back")
                assert any(edge in line and event.value in line for line in drawn.splitlines()), (state, event)


def test_a_claimed_half_is_checked_until_its_checks_are_used_up() -> None:
    policy = CheckPolicy(checks_max=3)
    assert [decide_before_check(policy, checks) for checks in (1, 3, 4)] == [
        CheckDecision.ASK,
        CheckDecision.ASK,
        CheckDecision.PARK,
    ]


def test_an_unknown_half_waits_and_is_parked_at_the_last_unknown() -> None:
    policy = CheckPolicy(checks_max=3)
    decisions = [decide_after_answer(policy, checks, TransactionState.UNKNOWN) for checks in (1, 2, 3, 4)]
    assert decisions == [CheckDecision.WAIT, CheckDecision.WAIT, CheckDecision.PARK, CheckDecision.PARK]


@pytest.mark.parametrize("checks", [1, 15, 16])
def test_an_outcome_counts_from_any_check(checks: int) -> None:
    assert decide_after_answer(CheckPolicy(), checks, TransactionState.COMMIT) is CheckDecision.COMMIT
    assert decide_after_answer(CheckPolicy(), checks, TransactionState.ROLLBACK) is CheckDecision.ROLLBACK


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("first_check_s", -1),
        ("checks_max", 0),
        ("answer_timeout_s", 0),
        ("interval_s", 10),
        ("no_client_park_s", 30),
    ],
)
def test_an_invalid_policy_is_refused_with_the_field_name(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        CheckPolicy(**{field: value})  # type: ignore[arg-type]


def test_a_group_without_its_own_policy_has_the_default() -> None:
    own = CheckPolicy(checks_max=3)
    policies = CheckPolicies(by_group={"orders": own})
    assert policies.of("orders") is own
    assert policies.of("users") == CheckPolicy()
