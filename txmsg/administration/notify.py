"""Administration of a Notify database, by the services Groups and DeadLetters of any of its brokers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Final
from uuid import UUID

from txmsg.administration.ask import Ask, moment
from txmsg.administration.dead_letters import DeadLetter, DeadLetterFilter, DeadLetterPage, Selection, failures_of
from txmsg.administration.groups import (
    CheckChange,
    CheckSettings,
    GroupChange,
    GroupDeletion,
    GroupDetails,
    GroupList,
    GroupName,
    GroupQuery,
    Groups,
    GroupSettings,
    RetryNow,
    RetryPage,
    RetryQuery,
    RetrySkip,
    Seek,
    SeekPlan,
)
from txmsg.errors import UnknownGroup
from txmsg.message import datetime_of_us, message_id, us_of_datetime
from txmsg.wire.codec import unpack_headers
from txmsg.wire.v1 import dead_letters_pb2
from txmsg.wire.v1.dead_letters_rpc import DeadLetters

_BATCH_MAX: Final = 1000
_BATCHES_PER_S: Final = 2.0


class NotifyAdministration:
    """See `Administration` for what each method promises."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    # ---- groups

    def list_groups(self, query: GroupQuery) -> GroupList:
        return self._ask(Groups.list, query)

    def show_group(self, group: str) -> GroupDetails:
        return self._ask(Groups.show, GroupName(group=group))

    def show_checks(self, group: str) -> CheckSettings | None:
        with suppress(UnknownGroup):
            return self._ask(Groups.show_checks, GroupName(group=group))
        return None

    def alter_group(self, change: GroupChange) -> GroupSettings:
        return self._ask(Groups.alter, change)

    def alter_checks(self, change: CheckChange) -> CheckSettings:
        return self._ask(Groups.alter_checks, change)

    def seek(self, seek: Seek) -> SeekPlan:
        return self._ask(Groups.seek, seek)

    def list_retries(self, query: RetryQuery) -> RetryPage:
        return self._ask(Groups.list_retries, query)

    def retry_now(self, group: str, id: str = "") -> Iterator[int]:
        after: str | None = ""
        while after is not None:
            reply = self._ask(Groups.retry_now, RetryNow(group=group, id=id, after=after))
            yield reply.retries
            after = reply.next

    def skip_retry(self, group: str, id: str) -> int:
        return self._ask(Groups.skip_retry, RetrySkip(group=group, id=id)).skipped

    def delete_group(self, deletion: GroupDeletion) -> None:
        self._ask(Groups.delete, deletion)

    # ---- dead letters

    def list_dead_letters(
        self, which: DeadLetterFilter, *, limit: int, page: str = "", whole: bool = False
    ) -> DeadLetterPage:
        request = dead_letters_pb2.ListDeadLettersRequest(
            filter=_filter(which), limit=limit, after=page, with_bodies=whole
        )
        reply = self._ask(DeadLetters.list, request)
        return DeadLetterPage(letters=[_letter(letter) for letter in reply.letters], next=reply.next or None)

    def select(self, which: DeadLetterFilter) -> Selection:
        reply = self._ask(DeadLetters.count, dead_letters_pb2.CountRequest(filter=_filter(which)))
        now = datetime_of_us(reply.as_of_us)
        return Selection(which=replace(which, until=min(which.until or now, now)), count=reply.count)

    def redrive(self, selection: Selection, *, rate: float | None = None) -> Iterator[int]:
        limit = _BATCH_MAX if rate is None else max(1, min(_BATCH_MAX, round(rate / _BATCHES_PER_S)))
        request = dead_letters_pb2.RedriveRequest(filter=_filter(selection.which), limit=limit)
        done, started_at = 0, time.monotonic()
        while redriven := self._ask(DeadLetters.redrive, request).redriven:
            yield redriven
            done += redriven
            if rate is not None and done < selection.count:
                time.sleep(max(0.0, started_at + done / rate - time.monotonic()))

    def purge(self, selection: Selection) -> Iterator[int]:
        request = dead_letters_pb2.PurgeRequest(filter=_filter(selection.which), limit=_BATCH_MAX)
        while purged := self._ask(DeadLetters.purge, request).purged:
            yield purged


def _filter(which: DeadLetterFilter) -> dead_letters_pb2.DeadLetterFilter:
    return dead_letters_pb2.DeadLetterFilter(
        group=which.group,
        topic=which.topic,
        since_us=us_of_datetime(which.since) if which.since else 0,
        until_us=us_of_datetime(which.until) if which.until else 0,
        error=which.error,
        id=which.id,
        key=which.key,
    )


def _letter(letter: dead_letters_pb2.DeadLetter) -> DeadLetter:
    return DeadLetter(
        id=message_id(UUID(bytes=letter.transaction_id), letter.n),
        group=letter.group,
        topic=letter.topic,
        queue=letter.queue,
        offset=letter.offset,
        key=letter.key or None,
        tag=letter.tag or None,
        ordering_key=letter.ordering_key or None,
        blocks_key=letter.blocks_key,
        born_at=moment(letter.born_at_us),
        stored_at=moment(letter.stored_at_us),
        died_at=moment(letter.died_at_us),
        attempts=letter.attempts,
        generation=letter.generation,
        last_error=letter.last_error or None,
        body_size_bytes=letter.size_bytes,
        headers=dict(unpack_headers(letter.headers)),
        body=letter.body,
        is_withheld=letter.withheld,
        failures=failures_of(letter.failures),
    )
