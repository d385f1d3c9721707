"""What can be done with consumer groups and dead letters, in Notify and in a log alike.

A field that a back end does not have, or does not know, is None. What it cannot do is refused with MisuseError.
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
    """What `txmsg group` and `txmsg dead-letter` do. Calls block. Raises the errors of errors.py."""

    # ---- groups

    def list_groups(self, query: GroupQuery) -> GroupList:
        """A page of groups, by name."""
        ...

    def show_group(self, group: str) -> GroupDetails:
        """A consumer group. Raises UnknownGroup."""
        ...

    def show_checks(self, group: str) -> CheckSettings | None:
        """When the half messages of a producer group are checked; None for a group that does not produce."""
        ...

    def alter_group(self, change: GroupChange) -> GroupSettings:
        """Changes settings of a consumer group; all of them after that. Raises UnknownGroup, unless it creates it."""
        ...

    def alter_checks(self, change: CheckChange) -> CheckSettings:
        """Changes settings of a producer group; all of them after that. Raises UnknownGroup."""
        ...

    def seek(self, seek: Seek) -> SeekPlan:
        """Has a group go on elsewhere in a topic, or says where it would. Raises UnknownGroup, UnknownTopic."""
        ...

    def list_retries(self, query: RetryQuery) -> RetryPage:
        """A page of a group's retries. Raises UnknownGroup."""
        ...

    def retry_now(self, group: str, id: str = "") -> Iterator[int]:
        """Makes retries due at once, those of a message, of a transaction, or all; after each step how many they were.

        Those that wait for an earlier message of their ordering key go on waiting. Raises UnknownGroup.
        """
        ...

    def skip_retry(self, group: str, id: str) -> int:
        """Deletes the retry of a message, or those of a transaction, for good; how many they were. Raises UnknownGroup.

        A handler that has one of them at this moment goes on.
        """
        ...

    def delete_group(self, deletion: GroupDeletion) -> None:
        """Deletes a group. Raises UnknownGroup, MisuseError."""
        ...

    # ---- dead letters

    def list_dead_letters(self, query: DeadLetterQuery) -> DeadLetterPage:
        """A page of dead letters."""
        ...

    def select(self, which: DeadLetterFilter) -> Selection:
        """How many dead letters these are now."""
        ...

    def redrive(self, selection: Selection, *, rate: float | None = None) -> Iterator[int]:
        """Delivers dead letters again as if they were new to their group; after each step how many they were.

        Given up in between, or failed: the rest are dead letters still. rate: per second at most.
        """
        ...

    def purge(self, selection: Selection) -> Iterator[int]:
        """Deletes dead letters for good; after each step how many they were."""
        ...
