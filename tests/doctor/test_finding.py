"""Checks are carried out one after the other; what hinders one of them is a finding."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from txmsg.doctor import brokers, database, disk, finding, log
from txmsg.doctor.finding import Check, Finding, Severity, examine, name_of, problem, warning
from txmsg.errors import StorageError

OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"


def wrong_thing(subject: str) -> Iterator[Finding]:
    yield problem(f"{subject} is wrong", why="it hurts", fix="mend it")


def failing_check(_: str) -> Iterator[Finding]:
    yield warning("seen before the failure", why="", fix="")
    raise StorageError("the schema is absent")


def test_a_finding_has_the_name_of_its_check() -> None:
    [found] = examine((wrong_thing,), lambda: nullcontext("disk"))
    assert found == Finding(
        severity=Severity.PROBLEM, what="disk is wrong", why="it hurts", fix="mend it", check="wrong-thing"
    )


def test_a_check_that_fails_is_a_finding_and_the_next_one_is_carried_out() -> None:
    failed, wrong = examine((failing_check, wrong_thing), lambda: nullcontext("disk"))
    assert (failed.check, failed.severity) == ("failing-check", Severity.WARNING)
    assert failed.what == "this could not be checked: the schema is absent"
    assert wrong.check == "wrong-thing"


def test_a_check_that_hangs_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding, "CHECK_S_MAX", 0.05)
    ended = threading.Event()

    def hanging_check(_: str) -> Iterator[Finding]:
        ended.wait()
        yield from ()

    [found] = examine((hanging_check,), lambda: nullcontext("disk"))
    ended.set()
    assert found.what == "this could not be checked: it has not ended within 0.05 s"


def test_an_error_in_a_check_is_not_hidden() -> None:
    def check_with_an_error(_: str) -> Iterator[Finding]:
        raise KeyError("site")

    with pytest.raises(KeyError, match="site"):
        list(examine((check_with_an_error,), lambda: nullcontext("disk")))


@pytest.mark.parametrize(("free", "severity"), [(90, None), (9, Severity.WARNING), (4, Severity.PROBLEM)])
def test_a_disk_that_is_nearly_full_is_found(
    free: int, severity: Severity | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gib = 1024**3
    monkeypatch.setattr(disk, "disk_usage", lambda _: SimpleNamespace(total=100 * gib, free=free * gib))
    found = list(disk.free_space(tmp_path, "the log", "buy another one"))
    assert [each.severity for each in found] == ([] if severity is None else [severity])
    assert all(f"{free}% free, {free}.0 GiB" in each.what for each in found)


def test_the_page_has_every_check_with_what_it_says() -> None:
    page = OPERATIONS.read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `([a-z-]+)` \| (.*) \|$", page, re.MULTILINE))
    checks: list[Check[Any]] = [*database.FIRST, *database.CHECKS, *brokers.CHECKS, *log.FIRST, *log.CHECKS]
    documented = {name_of(check): (check.__doc__ or "").partition("\n")[0] for check in checks}
    assert len(documented) == len(checks)
    assert {name: text for name, text in rows.items() if name in documented} == documented
