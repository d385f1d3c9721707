"""Findings about consumer groups, of a Notify database or of a log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from txmsg.administration.groups import GroupQuery, GroupSummary
from txmsg.administration.interface import Administration
from txmsg.checks.brokers import CUT
from txmsg.checks.check import Finding
from txmsg.checks.messages import DEAD_LETTERS, GROUP_UNREAD
from txmsg.ops.doctor.probe import NAMED_MAX, bounded

PAGE: Final = 1000
_PAGES_MAX: Final = 20
_ASKED_MAX: Final = 500
"""Maximum groups that are asked for their members, which takes a call to each broker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedGroups:
    """The groups. is_whole: True if these are all."""

    found: list[GroupSummary]
    is_whole: bool


def all_groups(administration: Administration) -> ProbedGroups:
    """Return the groups, up to 20,000."""
    found: list[GroupSummary] = []
    after = ""
    for _ in range(_PAGES_MAX):
        page = administration.list_groups(GroupQuery(limit=PAGE, after=after))
        found += page.groups
        if page.next is None:
            return ProbedGroups(found=found, is_whole=True)
        after = page.next
    return ProbedGroups(found=found, is_whole=False)


def unread(groups: ProbedGroups, members_of: Callable[[GroupSummary], int], of_log: str) -> Iterator[Finding]:
    """Yield groups that have waiting messages and no consumer. of_log: the option that names the log, for groups of a
    log.
    """
    if not groups.is_whole:
        yield CUT.found(left=f"there are more groups than the first {len(groups.found):,}, which alone were looked at")
    waiting = sorted((group for group in groups.found if group.waiting), key=lambda group: -group.waiting)
    asked = named = 0
    for group in waiting[:_ASKED_MAX]:
        if named == NAMED_MAX:
            break
        asked += 1
        if not members_of(group):
            named += 1
            yield GROUP_UNREAD.found(group=group.group, value=group.waiting, option=of_log)
    if left := len(waiting) - asked:
        yield CUT.found(left=f"{left:,} more groups have messages waiting, and were not asked for consumers")


def dead(groups: ProbedGroups) -> Iterator[Finding]:
    """Yield groups that have dead letters."""
    found = sorted((group for group in groups.found if group.dead), key=lambda group: -group.dead)
    letters = [DEAD_LETTERS.found(f"group {each.group} has {each.dead} dead letters") for each in found]
    yield from bounded(DEAD_LETTERS, letters)
