"""Checks of a MetaQ log, in a directory or at its server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from txmsg.administration.log import LogAdministration
from txmsg.administration.log_contents import LogState, log_state
from txmsg.doctor import groups
from txmsg.doctor.disk import free_share, free_space, looked_into
from txmsg.doctor.finding import Check, Finding, certificate, examine, problem
from txmsg.errors import TxmsgError
from txmsg.metaq.interface import LogAccess
from txmsg.metaq.location import open_log

_ANSWER_S_MAX: Final = 5.0
_LESS: Final = "give it a larger disk, or keep less: --retention and --retention-size of `txmsg metaq serve`"


@dataclass(frozen=True)
class Opened:
    """A log, and where it is."""

    where: str
    access: LogAccess

    def groups(self) -> groups.Groups:
        """Its groups."""
        return groups.all_groups(LogAdministration(self.access))

    @cached_property
    def state(self) -> LogState:
        """Its state, and that of its server."""
        return log_state(self.access)

    @property
    def option(self) -> str:
        """What names this log on a command line."""
        return f" --log {self.where}"


def look(where: str) -> Iterator[Finding]:
    """Everything that is wrong with the log. The first thing only, where the others need it."""

    @contextmanager
    def opened() -> Iterator[Opened]:
        with open_log(where, timeout_s=_ANSWER_S_MAX) as access:
            yield Opened(where, access)

    found = list(examine(FIRST, lambda: nullcontext(where)))
    yield from found
    if not found:
        yield from examine(CHECKS, opened)


def log_opens(where: str) -> Iterator[Finding]:
    """The log can be read."""
    try:
        with open_log(where, timeout_s=_ANSWER_S_MAX) as access:
            access.topics()
    except TxmsgError as exc:
        yield problem(
            f"the log {where} cannot be opened: {exc}",
            why="it cannot be read",
            fix="`txmsg metaq check DIRECTORY` says what is damaged; at a server, look at its log",
        )


def log_accepts(log: Opened) -> Iterator[Finding]:
    """The server of the log accepts appends."""
    if failure := log.state.failure:
        yield problem(
            f"the server of the log accepts no appends: {failure}",
            why="producers and tailers wait, or get errors, and write-ahead log of the database is kept meanwhile",
            fix=f"on a full disk, {_LESS}; otherwise the log of the server says more",
        )


def log_disk(log: Opened) -> Iterator[Finding]:
    """The disk of the log has free space."""
    if Path(log.where).is_dir():
        yield from free_space(Path(log.where), "the log", _LESS)
    elif (share := log.state.disk_free_ratio) is not None:
        yield from free_share(share, f"the log at {log.where}", _LESS)


def log_certificate(log: Opened) -> Iterator[Finding]:
    """The certificate of the log's server is valid for weeks."""
    yield from certificate(log.state.certificate_remaining_s, f"the server of the log at {log.where}")


def log_permissions(log: Opened) -> Iterator[Finding]:
    """No other user can read the log's files. Needs a log in a directory."""
    if Path(log.where).is_dir():
        yield from looked_into(Path(log.where), "the log", "it holds all messages that are mirrored")


def unread_log_groups(log: Opened) -> Iterator[Finding]:
    """Each group with waiting messages has a member."""
    yield from groups.unread(log.groups(), lambda group: group.members or 0, log.option)


def log_dead_letters(log: Opened) -> Iterator[Finding]:
    """No group has dead letters."""
    yield from groups.dead(log.groups(), log.option)


FIRST: Final[tuple[Check[str], ...]] = (log_opens,)
CHECKS: Final[tuple[Check[Opened], ...]] = (
    log_accepts,
    log_disk,
    log_certificate,
    log_permissions,
    unread_log_groups,
    log_dead_letters,
)
