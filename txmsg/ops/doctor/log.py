"""Probes of a MetaQ log, in a directory or at its server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from txmsg.administration.log import LogAdministration
from txmsg.administration.log_contents import LogState, log_state
from txmsg.checks.check import Finding
from txmsg.checks.conditions import INSTANCE
from txmsg.checks.logs import LOG_FAILED, LOG_UNREADABLE
from txmsg.errors import TxmsgError
from txmsg.metaq.interface import LogAccess
from txmsg.metaq.location import open_log
from txmsg.ops.doctor import groups
from txmsg.ops.doctor.machine import free_space, looked_into
from txmsg.ops.doctor.probe import Probe, examine, shown

_ANSWER_S_MAX: Final = 5.0


@dataclass(frozen=True)
class ProbedLog:
    """A log, and its directory or address."""

    where: str
    access: LogAccess

    def groups(self) -> groups.ProbedGroups:
        """Return the log's groups."""
        return groups.all_groups(LogAdministration(self.access))

    @cached_property
    def state(self) -> LogState:
        """The state of the log and of its server."""
        return log_state(self.access)

    @property
    def option(self) -> str:
        """The option that names this log on a command line."""
        return f" --log {self.where}"


def probe_log(where: str) -> Iterator[Finding]:
    """Yield all findings about the log. Only the first one, if the other probes need it."""

    @contextmanager
    def opened() -> Iterator[ProbedLog]:
        with open_log(where, timeout_s=_ANSWER_S_MAX) as access:
            yield ProbedLog(where, access)

    found = list(examine(FIRST, lambda: nullcontext(where)))
    yield from found
    # All other probes would fail for the same reason, and bury it among their findings.
    if not found:
        yield from examine(PROBES, opened)


def log_opens(where: str) -> Iterator[Finding]:
    """Check that the log can be read."""
    try:
        with open_log(where, timeout_s=_ANSWER_S_MAX) as access:
            access.topics()
    except TxmsgError as exc:
        yield LOG_UNREADABLE.found(log=where, error=exc)


def log_server(log: ProbedLog) -> Iterator[Finding]:
    """Yield the findings that the log's server reports about itself."""
    if failure := log.state.failure:
        yield LOG_FAILED.found(f"the server of the log accepts no appends: {failure}")
    figures = {
        "txmsg_tls_certificate_remaining_seconds": log.state.certificate_remaining_s,
        "txmsg_disk_free_ratio": None if Path(log.where).is_dir() else log.state.disk_free_ratio,
    }
    labels = frozenset({(INSTANCE, f"the log at {log.where}")})
    yield from shown({name: {labels: value} for name, value in figures.items() if value is not None})


def log_directory(log: ProbedLog) -> Iterator[Finding]:
    """Check that the directory of a log has free space, and that no other user can read it."""
    if Path(log.where).is_dir():
        yield from free_space(Path(log.where), "the log")
        yield from looked_into(Path(log.where), "the log")


def log_groups(log: ProbedLog) -> Iterator[Finding]:
    """Check that each group with waiting messages has a member, and none has dead letters."""
    yield from groups.unread(log.groups(), lambda group: group.members or 0, log.option)
    yield from groups.dead(log.groups())


FIRST: Final[tuple[Probe[str], ...]] = (log_opens,)
PROBES: Final[tuple[Probe[ProbedLog], ...]] = (log_server, log_directory, log_groups)
