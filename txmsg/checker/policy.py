"""Decides the next state of a half message and the time of its checks. Knows no database, no network and no clock.

The table `TRANSITIONS` holds the whole life of a half message, in the manner of h11: every pair of state and event that
is absent is illegal. `diagram()` draws the table for docs/architecture.md.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import assert_never

from txmsg.message import TransactionState


class HalfState(enum.Enum):
    """A state of a half message."""

    STORED = "stored"
    """On disk, undecided; checked when next_check_at comes."""
    IN_CHECK = "in check"
    """Claimed by a broker that is asking a client about it."""
    PARKED = "parked"
    """In doubt: no more checks; an operator or the client's late outcome decides."""
    COMMITTED = "committed"
    """Final: its messages are in their queues."""
    ROLLED_BACK = "rolled back"
    """Final: its messages are gone, its id is remembered."""


class HalfEvent(enum.Enum):
    """An event of a half message."""

    STORE = "store"
    """The client sends the half again, because the reply was lost."""
    CLAIM = "claim"
    """A broker found it due."""
    COMMIT = "commit"
    """The client, a check or an operator reports that the local transaction committed."""
    ROLLBACK = "rollback"
    """The client, a check or an operator reports that the local transaction did not commit and never will."""
    ASK_NOW = "ask now"
    """The client does not know the outcome of its own transaction: the next check comes at once."""
    UNKNOWN = "unknown"
    """A check ended without an outcome: the answer UNKNOWN, no answer in time, or no client to answer."""
    PARK = "park"
    """The checks are used up, or no client of the group has been seen for long."""
    RESUME = "resume"
    """An operator restarts the checks."""


_S, _E = HalfState, HalfEvent

TRANSITIONS: Mapping[HalfState, Mapping[HalfEvent, HalfState]] = MappingProxyType(
    {
        _S.STORED: {
            _E.STORE: _S.STORED,
            _E.CLAIM: _S.IN_CHECK,
            _E.COMMIT: _S.COMMITTED,
            _E.ROLLBACK: _S.ROLLED_BACK,
            _E.ASK_NOW: _S.STORED,
            _E.PARK: _S.PARKED,
        },
        _S.IN_CHECK: {
            _E.STORE: _S.IN_CHECK,
            _E.COMMIT: _S.COMMITTED,
            _E.ROLLBACK: _S.ROLLED_BACK,
            _E.ASK_NOW: _S.IN_CHECK,
            _E.UNKNOWN: _S.STORED,
            _E.PARK: _S.PARKED,
        },
        _S.PARKED: {
            _E.STORE: _S.PARKED,
            _E.COMMIT: _S.COMMITTED,
            _E.ROLLBACK: _S.ROLLED_BACK,
            _E.ASK_NOW: _S.PARKED,
            _E.UNKNOWN: _S.PARKED,  # another broker's check ended after this broker's check had parked the half
            _E.PARK: _S.PARKED,
            _E.RESUME: _S.STORED,
        },
        _S.COMMITTED: {
            _E.COMMIT: _S.COMMITTED,
            _E.ASK_NOW: _S.COMMITTED,
            _E.UNKNOWN: _S.COMMITTED,
        },
        _S.ROLLED_BACK: {
            _E.ROLLBACK: _S.ROLLED_BACK,
            _E.ASK_NOW: _S.ROLLED_BACK,
            _E.UNKNOWN: _S.ROLLED_BACK,
        },
    }
)
"""The whole life of a half message. Illegal is what is absent, above all the other outcome after a final one, and a
late copy of its messages: both are OutcomeConflict to the client. tests/integration/test_half_states.py executes it.
"""


def diagram() -> str:
    """Return the table as a Mermaid state diagram, without events that change nothing."""
    lines = ["stateDiagram-v2", "    [*] --> stored: half message sent"]
    for state, row in TRANSITIONS.items():
        by_target: dict[HalfState, list[str]] = {}
        for event, target in row.items():
            if target is not state:
                by_target.setdefault(target, []).append(event.value)
        lines += [
            f"    {_node(state)} --> {_node(target)}: {', '.join(events)}" for target, events in by_target.items()
        ]
    lines += [f"    {_node(state)} --> [*]" for state in (HalfState.COMMITTED, HalfState.ROLLED_BACK)]
    return "\n".join(lines) + "\n"


def _node(state: HalfState) -> str:
    return state.value.replace(" ", "_")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckPolicy:
    """Times and limits of the checks of a producer group. Raises ValueError for contradictions."""

    first_check_s: float = 6.0
    """Seconds from storing a half message to its first check. Default 6. 0 checks at once."""
    interval_s: float = 30.0
    """Seconds from one check to the next. Default 30. Must be longer than answer_timeout_s."""
    checks_max: int = 15
    """Checks without an outcome after which the half message is parked. Default 15. At least 1."""
    no_client_park_s: float = 86400.0
    """Seconds that a half message stays due while no client can be asked, before it is parked. Default 24 hours."""
    answer_timeout_s: float = 10.0
    """Seconds a client has to answer a check; then the answer counts as UNKNOWN. Default 10."""

    def __post_init__(self) -> None:
        if self.first_check_s < 0:
            raise ValueError(f"first_check_s is {self.first_check_s}: give 0 or more seconds")
        if self.checks_max < 1:
            raise ValueError(f"checks_max is {self.checks_max}: at least one check must be allowed")
        if self.answer_timeout_s <= 0:
            raise ValueError(f"answer_timeout_s is {self.answer_timeout_s}: give more than 0 seconds")
        if self.interval_s <= self.answer_timeout_s:
            raise ValueError(
                f"interval_s is {self.interval_s}, answer_timeout_s {self.answer_timeout_s}: a check would come due "
                "while the one before it still waits; make interval_s the longer one"
            )
        if self.no_client_park_s <= self.interval_s:
            raise ValueError(
                f"no_client_park_s is {self.no_client_park_s}, interval_s {self.interval_s}: "
                "a group would be given up before it is asked again; make no_client_park_s the longer one"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckPolicies:
    """The policy of every producer group."""

    default: CheckPolicy = field(default_factory=CheckPolicy)
    """The policy of groups that are not named below."""
    by_group: Mapping[str, CheckPolicy] = field(default_factory=lambda: MappingProxyType({}))

    def of(self, group: str) -> CheckPolicy:
        """Return the policy of one producer group."""
        return self.by_group.get(group, self.default)


class ParkReason(enum.Enum):
    """The reason for parking a half message. Operators read the value."""

    CHECKS_USED_UP = "checks used up"
    NO_CLIENT = "no client of the group"


class CheckDecision(enum.Enum):
    """The broker's next action on a half message that it has claimed."""

    ASK = "ask"
    COMMIT = "commit"
    ROLLBACK = "rollback"
    WAIT = "wait"
    PARK = "park"


def decide_before_check(policy: CheckPolicy, checks: int) -> CheckDecision:
    """Return ASK, or PARK if the checks were used up before this one. `checks` includes the one that is due now."""
    assert checks >= 1, f"a claimed half message counts its check, but has {checks}"
    return CheckDecision.PARK if checks > policy.checks_max else CheckDecision.ASK


def decide_after_answer(policy: CheckPolicy, checks: int, answer: TransactionState) -> CheckDecision:
    """Return the decision after the answer to check number `checks` (from 1): UNKNOWN waits, the last one parks."""
    match answer:
        case TransactionState.COMMIT:
            return CheckDecision.COMMIT
        case TransactionState.ROLLBACK:
            return CheckDecision.ROLLBACK
        case TransactionState.UNKNOWN:
            return CheckDecision.PARK if checks >= policy.checks_max else CheckDecision.WAIT
        case _:
            assert_never(answer)
