"""Calls of the Kafka client that are slow or never return."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest

from txmsg.metaq.kafka import awaited as module
from txmsg.metaq.kafka.awaited import awaited


@pytest.fixture
def never() -> Iterator[threading.Event]:
    """An event set at the end of the test, so that calls that wait for it end."""
    event = threading.Event()
    yield event
    event.set()


def test_results_and_errors_of_a_call_reach_the_caller() -> None:
    assert awaited(lambda: 7, "adding", timeout_s=60) == 7
    with pytest.raises(ZeroDivisionError):
        awaited(lambda: 1 // 0, "dividing", timeout_s=60)


def test_a_call_that_does_not_return_is_abandoned(never: threading.Event) -> None:
    with pytest.raises(TimeoutError, match="noting has not returned for"):
        awaited(never.wait, "noting", timeout_s=0.05)


def test_the_reason_for_a_slow_call_is_logged_during_the_call(
    never: threading.Event, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "TELL_S", 0.01)
    told = 0

    def why() -> str:
        nonlocal told
        told += 1
        if told == 3:
            never.set()
        return "node-2 cannot be reached" if told > 1 else ""

    caplog.set_level(logging.WARNING, module.__name__)
    assert awaited(never.wait, "noting", timeout_s=60, why=why)
    lines = [record.getMessage() for record in caplog.records]
    assert "noting: no answer for 0 s; Kafka's client gives no reason" in lines[0]
    assert lines[2].endswith("node-2 cannot be reached")
