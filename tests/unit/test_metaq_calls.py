"""Retried calls of a MetaQ server. No server runs: each attempt fails as the test defines."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from txmsg.errors import BrokerUnavailable, OutcomeUnknown, PermissionDenied, TxmsgError
from txmsg.metaq.remote.calls import RemoteServer

UNKNOWN, REFUSED = OutcomeUnknown("no answer"), PermissionDenied("you may not")


def failing(*errors: TxmsgError) -> Callable[[float, bool], None]:
    left = list(errors)

    def attempt(timeout_s: float, is_repeat: bool) -> None:
        assert is_repeat == (UNKNOWN not in left)
        raise left.pop(0)

    return attempt


@pytest.mark.parametrize("between", [[], [BrokerUnavailable("away")]])
def test_a_refusal_after_an_unanswered_attempt_is_still_an_unknown_outcome(between: list[TxmsgError]) -> None:
    server = RemoteServer("127.0.0.1:1")
    attempts = UNKNOWN, *between, REFUSED
    with pytest.raises(OutcomeUnknown, match="you may not; an earlier attempt may have been carried out") as caught:
        server.ask_until_answered(failing(*attempts), timeout_s=60, changes=True)
    assert caught.value.__cause__ is REFUSED
    with pytest.raises(PermissionDenied):  # a call without effects is simply refused
        server.ask_until_answered(failing(*attempts), timeout_s=60)
    server.close()
