"""Administration of a Notify database, by the services Groups and DeadLetters of any of its brokers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from txmsg.administration.ask import AskBroker
from txmsg.administration.dead_letters import (
    DeadLetterBatch,
    DeadLetterFilter,
    DeadLetterPage,
    DeadLetterQuery,
    DeadLettersService,
    Selection,
)
from txmsg.administration.groups import (
    CheckChange,
    CheckSettings,
    GroupChange,
    GroupDeletion,
    GroupDetails,
    GroupList,
    GroupName,
    GroupQuery,
    GroupSettings,
    GroupsService,
    RetryNow,
    RetryPage,
    RetryQuery,
    RetrySkip,
    Seek,
    SeekPlan,
)
from txmsg.errors import MisuseError, UnknownGroup

_BATCH_MAX: Final = 1000
_BATCHES_PER_S: Final = 2.0


class NotifyAdministration:
    """The operations of `Administration` on a Notify database."""

    def __init__(self, ask: AskBroker) -> None:
        self._ask = ask

    # ---- groups

    def list_groups(self, query: GroupQuery) -> GroupList:
        return self._ask(GroupsService.list, query)

    def show_group(self, group: str) -> GroupDetails:
        return self._ask(GroupsService.show, GroupName(group=group))

    def show_checks(self, group: str) -> CheckSettings | None:
        with suppress(UnknownGroup):
            return self._ask(GroupsService.show_checks, GroupName(group=group))
        return None

    def alter_group(self, change: GroupChange) -> GroupSettings:
        if change.concurrency is not None:
            setting = f"client.concurrency@{change.group}"
            raise MisuseError(
                f"concurrency={change.concurrency} of group {change.group!r}, which is at brokers: `txmsg config set "
                f"{setting} N` sets that of its consumers, and `txmsg config unset {setting}` resets it"
            )
        return self._ask(GroupsService.alter, change)

    def alter_checks(self, change: CheckChange) -> CheckSettings:
        return self._ask(GroupsService.alter_checks, change)

    def seek(self, seek: Seek) -> SeekPlan:
        return self._ask(GroupsService.seek, seek)

    def list_retries(self, query: RetryQuery) -> RetryPage:
        return self._ask(GroupsService.list_retries, query)

    def retry_now(self, group: str, id: str = "") -> Iterator[int]:
        after: str | None = ""
        while after is not None:
            reply = self._ask(GroupsService.retry_now, RetryNow(group=group, id=id, after=after))
            yield reply.retries
            after = reply.next

    def skip_retry(self, group: str, id: str) -> int:
        return self._ask(GroupsService.skip_retry, RetrySkip(group=group, id=id)).skipped

    def delete_group(self, deletion: GroupDeletion) -> None:
        self._ask(GroupsService.delete, deletion)

    # ---- dead letters

    def list_dead_letters(self, query: DeadLetterQuery) -> DeadLetterPage:
        return self._ask(DeadLettersService.list, query)

    def select(self, which: DeadLetterFilter) -> Selection:
        return self._ask(DeadLettersService.count, which)

    def redrive(self, selection: Selection, *, rate: float | None = None) -> Iterator[int]:
        limit = _BATCH_MAX if rate is None else max(1, min(_BATCH_MAX, round(rate / _BATCHES_PER_S)))
        batch = DeadLetterBatch(which=selection.which, limit=limit)
        done, started_at = 0, time.monotonic()
        # Batch by batch: each is one transaction at the broker, so a stop in between leaves whole letters.
        while redriven := self._ask(DeadLettersService.redrive, batch).count:
            yield redriven
            done += redriven
            if rate is not None and done < selection.count:
                # From the start rather than between batches: time spent in calls counts, so that the average meets
                # the rate.
                time.sleep(max(0.0, started_at + done / rate - time.monotonic()))

    def purge(self, selection: Selection) -> Iterator[int]:
        batch = DeadLetterBatch(which=selection.which, limit=_BATCH_MAX)
        while purged := self._ask(DeadLettersService.purge, batch).count:
            yield purged
