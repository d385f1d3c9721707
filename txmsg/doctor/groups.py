"""What is wrong with consumer groups, of a Notify database or of a log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from txmsg.administration import Administration, GroupSummary
from txmsg.doctor.finding import Finding, warning

_PAGE: Final = 1000
_PAGES_MAX: Final = 20
_NAMED_MAX: Final = 20
"""Groups that are told, those with most first; a set of 10,000 groups is no list for people."""


def all_groups(administration: Administration) -> list[GroupSummary]:
    """The groups, up to 20,000."""
    found: list[GroupSummary] = []
    after = ""
    for _ in range(_PAGES_MAX):
        page = administration.list_groups(_PAGE, after=after)
        found += page.groups
        if page.next is None:
            break
        after = page.next
    return found


def unread(groups: list[GroupSummary], members_of: Callable[[GroupSummary], int], of_log: str) -> Iterator[Finding]:
    """Groups that have messages waiting, and no consumer. of_log: the option that names the log, if it is one's."""
    waiting = sorted((group for group in groups if group.waiting), key=lambda group: -group.waiting)
    for group in waiting[:_NAMED_MAX]:
        if not members_of(group):
            yield warning(
                f"{group.waiting} messages wait for group {group.group}, and it has no consumer",
                why="they are kept for it, or dropped unread by retention",
                fix=f"start its consumers, or `txmsg group delete {group.group}{of_log}` if it is not wanted any more",
            )


def dead(groups: list[GroupSummary], of_log: str) -> Iterator[Finding]:
    """Groups that have dead letters."""
    found = sorted((group for group in groups if group.dead), key=lambda group: -group.dead)
    for group in found[:_NAMED_MAX]:
        yield warning(
            f"group {group.group} has {group.dead} dead letters",
            why="its handler failed for them until no attempt was left, and nobody has acted since",
            fix=f"`txmsg dead-letter list --group {group.group}{of_log}` says why; redrive or purge them",
        )
