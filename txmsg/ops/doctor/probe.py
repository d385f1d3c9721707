"""Runs the probes of a set, one after the other, each within a time limit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from itertools import groupby
from typing import Final, TypeVar

import psycopg

from txmsg.checks.brokers import CUT, NOT_CHECKED
from txmsg.checks.catalogue import findings_in
from txmsg.checks.check import Check, Finding
from txmsg.checks.conditions import Samples
from txmsg.checks.thresholds import DEFAULTS, Thresholds
from txmsg.errors import TxmsgError
from txmsg.metrics.catalogue import Scope

T = TypeVar("T")

CHECK_S_MAX: Final = 15.0
NAMED_MAX: Final = 20
"""Maximum findings of a check that are reported, the worst first: a set of 10,000 groups is too long a list
for people."""

Probe = Callable[[T], Iterable[Finding]]


def shown(samples: Samples, thresholds: Thresholds = DEFAULTS, scope: Scope | None = None) -> Iterator[Finding]:
    """Yield the findings in figures, the worst of each check."""
    for check, each in groupby(findings_in(samples, thresholds, scope), key=lambda finding: finding.check):
        yield from bounded(check, list(each))


def bounded(check: Check, found: Sequence[Finding]) -> Iterator[Finding]:
    """Yield the first of the findings of one check, and how many more there are."""
    yield from found[:NAMED_MAX]
    if (more := len(found) - NAMED_MAX) > 0:
        yield CUT.found(left=f"there are {more:,} more findings of {check.name} than the {NAMED_MAX} that are named")


def on_one_line(exc: BaseException) -> str:
    """Return the text of an error on one line, also if libpq has several."""
    return "; ".join(filter(None, map(str.strip, str(exc).splitlines())))


def name_of(probe: Probe[T]) -> str:
    """Return the name of a probe: that of its function."""
    return probe.__name__.replace("_", "-")


def examine(probes: Sequence[Probe[T]], subject: Callable[[], AbstractContextManager[T]]) -> Iterator[Finding]:
    """Yield the findings of the probes, each with a subject of its own: a failed one leaves nothing behind for the
    next.

    A probe that fails, or takes longer than CHECK_S_MAX, is a finding itself.
    """
    for probe in probes:
        try:
            yield from _in_time(probe, subject)
        except (TxmsgError, psycopg.Error, OSError) as exc:
            timed_out = f"it has not ended within {CHECK_S_MAX:g} s"
            error = timed_out if isinstance(exc, TimeoutError) else on_one_line(exc)
            yield NOT_CHECKED.found(probe=name_of(probe), error=error)


def _in_time(probe: Probe[T], subject: Callable[[], AbstractContextManager[T]]) -> list[Finding]:
    """Run a probe on a thread, since a file system or a server may hang for ever; the thread is then left behind."""
    answer = Future[list[Finding]]()

    def look() -> None:
        try:
            with subject() as given:
                answer.set_result(list(probe(given)))
        except BaseException as exc:  # noqa: BLE001 - for the caller
            answer.set_exception(exc)

    threading.Thread(target=look, name=f"doctor {name_of(probe)}", daemon=True).start()
    return answer.result(CHECK_S_MAX)
