"""Operations on consumer groups and dead letters, the same for Notify and for a log.

A field that a back end lacks, or does not know, is None. Operations that it lacks are refused with MisuseError.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from txmsg.administration.dead_letters import DeadLetterFilter, DeadLetterPage, DeadLetterQuery, Selection
from txmsg.administration.groups import (
    CheckChange,
    CheckSettings,
    GroupChange,
    GroupDeletion,
    GroupDetails,
    GroupList,
    GroupQuery,
    GroupSettings,
    RetryPage,
    RetryQuery,
    Seek,
    SeekPlan,
)


class Administration(Protocol):
    """The operations of `txmsg group` and `txmsg dead-letter`. Calls block. Raises the errors of errors.py."""

    # ---- groups

    def list_groups(self, query: GroupQuery) -> GroupList:
        """Return a page of groups, by name."""
        ...

    def show_group(self, group: str) -> GroupDetails:
        """Return a consumer group. Raises UnknownGroup."""
        ...

    def show_checks(self, group: str) -> CheckSettings | None:
        """Return the check settings of a producer group; None for a group that does not produce."""
        ...

    def alter_group(self, change: GroupChange) -> GroupSettings:
        """Change settings of a consumer group. Return all of them. Raises UnknownGroup, unless it creates the group."""
        ...

    def alter_checks(self, change: CheckChange) -> CheckSettings:
        """Change settings of a producer group. Return all of them. Raises UnknownGroup."""
        ...

    def seek(self, seek: Seek) -> SeekPlan:
        """Move a group to other offsets of a topic; a dry run only returns them. Raises UnknownGroup, UnknownTopic."""
        ...

    def list_retries(self, query: RetryQuery) -> RetryPage:
        """Return a page of a group's retries. Raises UnknownGroup."""
        ...

    def retry_now(self, group: str, id: str = "") -> Iterator[int]:
        """Make retries due at once: those of a message, of a transaction, or all. Yield the number of each step.

        Retries that wait for an earlier message of their ordering key still wait. Raises UnknownGroup.
        """
        ...

    def skip_retry(self, group: str, id: str) -> int:
        """Delete the retry of a message, or those of a transaction, for good. Return their number.

        A handler that is running one of them is not stopped. Raises UnknownGroup.
        """
        ...

    def delete_group(self, deletion: GroupDeletion) -> None:
        """Delete a group. Raises UnknownGroup, MisuseError."""
        ...

    # ---- dead letters

    def list_dead_letters(self, query: DeadLetterQuery) -> DeadLetterPage:
        """Return a page of dead letters."""
        ...

    def select(self, which: DeadLetterFilter) -> Selection:
        """Return the selection of these dead letters, with their current number."""
        ...

    def redrive(self, selection: Selection, *, rate: float | None = None) -> Iterator[int]:
        """Redeliver dead letters as if they were new to their group. Yield the number of each step.

        If iteration stops or fails, the rest are still dead letters. rate: per second at most.
        """
        ...

    def purge(self, selection: Selection) -> Iterator[int]:
        """Delete dead letters for good. Yield the number of each step."""
        ...
