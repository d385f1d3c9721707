"""What is wrong with consumer groups, of a Notify database or of a log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from txmsg.administration.groups import GroupQuery, GroupSummary
from txmsg.administration.interface import Administration
from txmsg.doctor.finding import Finding, cut, warning

PAGE: Final = 1000
_PAGES_MAX: Final = 20
NAMED_MAX: Final = 20
"""Groups that are told, those with most first; a set of 10,000 groups is no list for people."""
_ASKED_MAX: Final = 500
"""Groups that are asked for their members: that is a call to each broker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """The groups. is_whole: whether these are all."""

    found: list[GroupSummary]
    is_whole: bool


def all_groups(administration: Administration) -> Groups:
    """The groups, up to 20,000."""
    found: list[GroupSummary] = []
    after = ""
    for _ in range(_PAGES_MAX):
        page = administration.list_groups(GroupQuery(limit=PAGE, after=after))
        found += page.groups
        if page.next is None:
            return Groups(found=found, is_whole=True)
        after = page.next
    return Groups(found=found, is_whole=False)


def unread(groups: Groups, members_of: Callable[[GroupSummary], int], of_log: str) -> Iterator[Finding]:
    """Groups that have messages waiting, and no consumer. of_log: the option that names the log, if it is one's."""
    if not groups.is_whole:
        yield cut(f"there are more groups than the first {len(groups.found):,}, which alone were looked at")
    waiting = sorted((group for group in groups.found if group.waiting), key=lambda group: -group.waiting)
    asked = named = 0
    for group in waiting[:_ASKED_MAX]:
        if named == NAMED_MAX:
            break
        asked += 1
        if not members_of(group):
            named += 1
            yield warning(
                f"{group.waiting} messages wait for group {group.group}, and it has no consumer",
                why="they are kept for it, or dropped unread by retention",
                fix=f"start its consumers, or `txmsg group delete {group.group}{of_log}` if it is not wanted any more",
            )
    if left := len(waiting) - asked:
        yield cut(f"{left:,} more groups have messages waiting, and were not asked for consumers")


def dead(groups: Groups, of_log: str) -> Iterator[Finding]:
    """Groups that have dead letters."""
    found = sorted((group for group in groups.found if group.dead), key=lambda group: -group.dead)
    for group in found[:NAMED_MAX]:
        yield warning(
            f"group {group.group} has {group.dead} dead letters",
            why="its handler failed at every attempt, and no operator has acted since",
            fix=f"`txmsg dead-letter list --group {group.group}{of_log}` says why; redrive or purge them",
        )
    if len(found) > NAMED_MAX:
        yield cut(f"{len(found) - NAMED_MAX:,} more groups have dead letters")
