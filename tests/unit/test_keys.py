"""The life of an ordering key in a window: the table is executed, each state by each event, legal or not.

Whether the table itself is right is judged by the order of deliveries: with any wrong transition a message is lost,
comes too early or never, or goes to the table `retry` though none before it has failed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from itertools import product
from types import MappingProxyType
from typing import Final

import pytest

from tests.unit.test_window_keys import keyed
from tests.unit.test_window_order import play_to_the_end
from txmsg.broker.delivery import keys as module
from txmsg.broker.delivery.keys import TRANSITIONS, KeyEvent, KeyState, OrderingKeys

S, E = KeyState, KeyEvent
K: Final = "k"
LATER: Final = 100
HISTORIES: Final = 200
"""Number of histories per wrong transition; the first that fails ends them."""


def in_state(state: KeyState) -> OrderingKeys:
    """Return keys of which one is in this state. If it is busy, its head is 0, and 1 waits behind."""
    keys = OrderingKeys([K] if state is S.BLOCKED else ())
    if state in (S.BUSY, S.BUSY_THEN_BLOCKED):
        ready, following = keys.admit(keyed(0, K, K))
        assert ([row.offset for row in ready], following) == ([0], [])
    if state is S.BUSY_THEN_BLOCKED:
        keys.block(K)
    return keys


def over(keys: OrderingKeys) -> None:
    """End all that is in flight; the rest is read again."""
    keys.rewound(lambda _offset: False)


HAPPENS: Final[Mapping[KeyEvent, Callable[[OrderingKeys], object]]] = {
    E.READ: lambda keys: keys.admit(keyed(2, K)),
    E.JOIN: lambda keys: keys.join(0),
    E.NEXT: lambda keys: keys.done([0]),
    E.OVER: over,
    E.BLOCK: lambda keys: keys.block(K),
    E.UNBLOCK: lambda keys: keys.unblock(K),
}


def seen(keys: OrderingKeys) -> KeyState:
    """Return the state of the key by the fate of a later message of it, now and when all before it is done."""
    keys = deepcopy(keys)
    ready, following = keys.admit(keyed(LATER, K))
    if ready:
        return S.FREE
    if following:
        return S.BLOCKED
    while ready or not following:
        out = [offset for offset in range(LATER) if keys.holds(offset)]
        if not out:
            return S.BUSY
        ready, following = keys.done(out)
    return S.BUSY_THEN_BLOCKED


PAIRS: Final = [pytest.param(*pair, id=" meets ".join(each.value for each in pair)) for pair in product(S, E)]


@pytest.mark.parametrize(("state", "event"), PAIRS)
def test_every_state_handles_every_event_as_the_table_says(state: KeyState, event: KeyEvent) -> None:
    keys = in_state(state)
    assert (keys.state_of(K), seen(keys)) == (state, state)
    if (state, event) in TRANSITIONS:
        HAPPENS[event](keys)
        after = TRANSITIONS[state, event]
        assert (keys.state_of(K), seen(keys)) == (after, after)
    else:
        with pytest.raises(AssertionError, match=f"ordering key 'k' is {state.name}: {event.name} is illegal"):
            keys._fire(keys._entry(K), event)
        assert (keys.state_of(K), seen(keys)) == (state, state), "nothing has changed"


def test_a_run_ends_when_its_key_is_blocked() -> None:
    keys = in_state(S.BUSY)
    assert keys.next_of_run(0) is not None
    keys.block(K)
    assert keys.next_of_run(0) is None


WRONG: Final = [
    pytest.param(*pair, after, id=f"{pair[0].value} meets {pair[1].value} and is {after.value}")
    for pair, right in TRANSITIONS.items()
    for after in S
    if after is not right
]


@pytest.mark.parametrize(("state", "event", "after"), WRONG)
def test_every_planted_wrong_transition_is_found(
    state: KeyState, event: KeyEvent, after: KeyState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TRANSITIONS", MappingProxyType({**TRANSITIONS, (state, event): after}))
    assert first_failing() < HISTORIES, "no history of a queue has found it"


@pytest.mark.parametrize(("state", "event"), [pytest.param(*pair, id=" meets ".join(pair)) for pair in TRANSITIONS])
def test_every_transition_is_needed(state: KeyState, event: KeyEvent, monkeypatch: pytest.MonkeyPatch) -> None:
    fewer = {pair: after for pair, after in TRANSITIONS.items() if pair != (state, event)}
    monkeypatch.setattr(module, "TRANSITIONS", MappingProxyType(fewer))
    assert first_failing() < HISTORIES, "no history of a queue needs it"


def test_the_same_histories_find_no_defect_in_the_real_table() -> None:
    assert first_failing() == HISTORIES


def first_failing() -> int:
    """Return the first history of a queue that a wrong table spoils; HISTORIES: there is none."""
    for seed in range(HISTORIES):
        try:
            play_to_the_end(seed)
        except (AssertionError, LookupError):
            return seed
    return HISTORIES
