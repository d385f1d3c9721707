"""Probes run one after the other; a failing probe is itself a finding."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from txmsg.checks.brokers import DISK_NEARLY_FULL, NOT_CHECKED
from txmsg.checks.check import CRITICAL, Check, Finding
from txmsg.errors import StorageError
from txmsg.ops.doctor import machine, probe
from txmsg.ops.doctor.probe import examine

WRONG = Check("wrong-thing", CRITICAL, "{thing} is wrong", why="it hurts", fix="mend {thing}")


def wrong_thing(subject: str) -> Iterator[Finding]:
    yield WRONG.found(thing=subject)


def failing_probe(_: str) -> Iterator[Finding]:
    yield WRONG.found("seen before the failure")
    raise StorageError("the schema is absent")


def test_a_finding_has_the_texts_of_its_check() -> None:
    [found] = examine((wrong_thing,), lambda: nullcontext("disk"))
    assert (found.check, found.severity) == (WRONG, CRITICAL)
    assert (found.what, found.why, found.fix) == ("disk is wrong", "it hurts", "mend disk")


def test_failing_probe_is_a_finding_and_the_next_one_runs() -> None:
    failed, wrong = examine((failing_probe, wrong_thing), lambda: nullcontext("disk"))
    assert failed.check is NOT_CHECKED
    assert failed.what == "failing-probe could not be looked at: the schema is absent"
    assert wrong.check is WRONG


def test_hanging_probe_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "CHECK_S_MAX", 0.05)
    ended = threading.Event()

    def hanging_probe(_: str) -> Iterator[Finding]:
        ended.wait()
        yield from ()

    [found] = examine((hanging_probe,), lambda: nullcontext("disk"))
    ended.set()
    assert found.what == "hanging-probe could not be looked at: it has not ended within 0.05 s"


def test_an_error_in_a_probe_is_not_hidden() -> None:
    def probe_with_an_error(_: str) -> Iterator[Finding]:
        raise KeyError("site")

    with pytest.raises(KeyError, match="site"):
        list(examine((probe_with_an_error,), lambda: nullcontext("disk")))


@pytest.mark.parametrize(("free", "is_found"), [(90, False), (10, False), (9, True)])
def test_nearly_full_disk_is_found(free: int, is_found: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gib = 1024**3
    monkeypatch.setattr(machine, "disk_usage", lambda _: SimpleNamespace(total=100 * gib, free=free * gib))
    found = list(machine.free_space(tmp_path, "the log"))
    assert [each.check for each in found] == [DISK_NEARLY_FULL] * is_found
    assert all(f"{free}% free, {free}.0 GiB" in each.what for each in found)
