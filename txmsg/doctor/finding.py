"""What a check finds, and how checks are carried out: one after the other, each with a time of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, TypeVar

import psycopg

from txmsg.errors import TxmsgError
from txmsg.wire.tls import EXPIRES_SOON_S

T = TypeVar("T")

CHECK_S_MAX: Final = 15.0


class Severity(Enum):
    """How bad a finding is."""

    PROBLEM = "problem"
    """Messages wait, or are in danger."""
    WARNING = "warning"
    """It works, but will not for ever, or not after the next fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What is wrong, why that matters, and what mends it. check: the name of the check that found it."""

    severity: Severity
    what: str
    why: str
    fix: str
    check: str = ""


Check = Callable[[T], Iterable[Finding]]


def problem(what: str, *, why: str, fix: str) -> Finding:
    """A finding of this severity."""
    return Finding(severity=Severity.PROBLEM, what=what, why=why, fix=fix)


def warning(what: str, *, why: str, fix: str) -> Finding:
    """A finding of this severity."""
    return Finding(severity=Severity.WARNING, what=what, why=why, fix=fix)


def cut(what: str) -> Finding:
    """That a check has not named, or not looked at, all there is."""
    return warning(
        what,
        why="this command is bounded: there may be more problems in the rest",
        fix="mend what it names, and run it again; the dashboards of docs/metrics.md show all together",
    )


def certificate(remaining_s: float | None, whose: str) -> Iterator[Finding]:
    """Whether a certificate ends soon. remaining_s: None without one."""
    if remaining_s is None or remaining_s >= EXPIRES_SOON_S:
        return
    when = f"expires in {remaining_s / 86400:.1f} days" if remaining_s > 0 else "has expired"
    yield (warning if remaining_s > 0 else problem)(
        f"the certificate of {whose} {when}",
        why="clients refuse an expired certificate",
        fix="renew it: the process reads the file again by itself",
    )


def on_one_line(exc: BaseException) -> str:
    """The text of an error, also of what libpq says on several lines."""
    return "; ".join(filter(None, map(str.strip, str(exc).splitlines())))


def name_of(check: Check[T]) -> str:
    """The name of a check: that of its function."""
    return check.__name__.replace("_", "-")


def examine(checks: Sequence[Check[T]], subject: Callable[[], AbstractContextManager[T]]) -> Iterator[Finding]:
    """What the checks find, each with a subject of its own: one that fails leaves nothing behind for the next.

    A check that fails, or takes longer than CHECK_S_MAX, is a finding itself.
    """
    for check in checks:
        try:
            found = _in_time(check, subject)
        except (TxmsgError, psycopg.Error, OSError) as exc:
            timed_out = f"it has not ended within {CHECK_S_MAX:g} s"
            told = timed_out if isinstance(exc, TimeoutError) else on_one_line(exc)
            found = [
                warning(
                    f"this could not be checked: {told}",
                    why="problems here stay undetected",
                    fix="mend what hinders the check, and run `txmsg doctor` again",
                )
            ]
        yield from (replace(each, check=name_of(check)) for each in found)


def _in_time(check: Check[T], subject: Callable[[], AbstractContextManager[T]]) -> list[Finding]:
    """On a thread, since a file system or a server may hang for ever. One that does is left behind."""
    answer = Future[list[Finding]]()

    def look() -> None:
        try:
            with subject() as given:
                answer.set_result(list(check(given)))
        except BaseException as exc:  # noqa: BLE001 - for the caller
            answer.set_exception(exc)

    threading.Thread(target=look, name=f"doctor {name_of(check)}", daemon=True).start()
    return answer.result(CHECK_S_MAX)
