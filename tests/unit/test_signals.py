"""Effects of signals on a foreground process, and on one that a supervisor ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from txmsg.runtime import signals


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(signals, "_repeats", False)
    monkeypatch.setattr(signals, "_came", False)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    signals._before.clear()
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_second_signal_has_its_former_effect() -> None:
    stops: list[int] = []
    with signals.stopped_by_signals(lambda: stops.append(1)):
        signal.raise_signal(signal.SIGTERM)
        assert signals.has_come()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    assert stops == [1]


def test_with_repeats_ignored_further_signals_change_nothing_until_the_process_ends() -> None:
    stops: list[int] = []
    signals.take_repeats_as_one()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with signals.stopped_by_signals(lambda: stops.append(1)):
        assert not signals.has_come()
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)  # would end this process
    signal.raise_signal(signal.SIGTERM)  # while the interpreter ends
    assert len(stops) >= 1


def test_with_repeats_ignored_a_signal_before_the_run_has_its_former_effect() -> None:
    signals.take_repeats_as_one()
    with signals.stopped_by_signals(lambda: None):
        pass
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN


def test_a_forked_process_is_ended_by_a_signal() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with signals.stopped_by_signals(lambda: None):
        pid = os.fork()
        if pid == 0:
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM
