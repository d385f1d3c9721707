"""Administration of a Notify database, by the services Groups and DeadLetters of any of its brokers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any, Final
from uuid import UUID

from txmsg.administration import (
    CheckChange,
    CheckSettings,
    DeadLetter,
    DeadLetterFilter,
    DeadLetterPage,
    GroupChange,
    GroupDetails,
    GroupList,
    GroupMember,
    GroupQueue,
    GroupSettings,
    GroupSummary,
    Retry,
    RetryPage,
    SeekPlan,
    Selection,
    TopicLag,
    failures_of,
)
from txmsg.administration.ask import Ask, moment, new_request
from txmsg.errors import UnknownGroup
from txmsg.message import datetime_of_us, message_id, us_of_datetime
from txmsg.runtime.start import Start
from txmsg.wire.codec import unpack_headers
from txmsg.wire.v1 import dead_letters_pb2, groups_pb2
from txmsg.wire.v1.dead_letters_rpc import DeadLetters
from txmsg.wire.v1.groups_rpc import Groups

_BATCH_MAX: Final = 1000
_BATCHES_PER_S: Final = 2.0
_CHECKS: Final = ("first_check_s", "check_interval_s", "checks_max", "no_client_park_s")
_QUEUE: Final = ("topic", "queue", "next_offset", "begin", "end", "waiting", "retrying", "dead", "seeking")


class NotifyAdministration:
    """See `Administration` for what each method promises."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    # ---- groups

    def list_groups(self, limit: int, *, after: str = "", contains: str = "") -> GroupList:
        request = groups_pb2.ListGroupsRequest(limit=limit, after=after, contains=contains)
        reply = self._ask(Groups.list, request)
        return GroupList(
            groups=[_summary(group) for group in reply.groups],
            producer_groups=[_checks(settings) for settings in reply.producer_groups],
            next=reply.next or None,
        )

    def show_group(self, group: str) -> GroupDetails:
        reply = self._ask(Groups.show, groups_pb2.ShowGroupRequest(group=group))
        queues = _queues(reply.queues)
        return GroupDetails(
            settings=_settings(reply.settings),
            created_at=moment(reply.created_at_us),
            paused_s=round(reply.paused_s, 1) if reply.paused else None,
            last_error=reply.last_error or None,
            waiting=sum(queue.waiting for queue in reply.queues),
            retrying=sum(queue.retrying for queue in reply.queues),
            dead=sum(queue.dead for queue in reply.queues),
            members=[
                GroupMember(
                    id=member.client_id,
                    silent_s=round(member.silent_s, 1),
                    host=member.host or None,
                    pid=member.pid or None,
                    release=member.release or None,
                    since=moment(member.since_us),
                )
                for member in reply.members
            ],
            queues=queues,
        )

    def show_checks(self, group: str) -> CheckSettings | None:
        try:
            return _checks(self._ask(Groups.show_checks, groups_pb2.ShowChecksRequest(group=group)).settings)
        except UnknownGroup:
            return None

    def alter_group(self, group: str, change: GroupChange) -> GroupSettings:
        request = new_request(groups_pb2.AlterGroupRequest, group=group, **_given(change))
        return _settings(self._ask(Groups.alter, request).settings)

    def alter_checks(self, group: str, change: CheckChange) -> CheckSettings:
        request = new_request(groups_pb2.AlterChecksRequest, group=group, **_given(change))
        return _checks(self._ask(Groups.alter_checks, request).settings)

    def seek(
        self, group: str, topic: str, to: Start, *, queue: int | None = None, again: bool = False
    ) -> Sequence[GroupQueue]:
        request = new_request(
            groups_pb2.SeekRequest, group=group, topic=topic, queue=queue, again=again, **_destination(to)
        )
        return _queues(self._ask(Groups.seek, request).queues)

    def plan_seek(self, group: str, topic: str, to: Start, *, queue: int | None = None) -> SeekPlan:
        request = new_request(
            groups_pb2.SeekRequest, group=group, topic=topic, queue=queue, dry_run=True, **_destination(to)
        )
        reply = self._ask(Groups.seek, request)
        return SeekPlan(queues=_queues(reply.queues), to=list(reply.to))

    def list_retries(self, group: str, *, limit: int, page: str = "") -> RetryPage:
        reply = self._ask(Groups.list_retries, groups_pb2.ListRetriesRequest(group=group, limit=limit, after=page))
        return RetryPage(retries=[_retry(retry) for retry in reply.retries], next=reply.next or None)

    def retry_now(self, group: str, id: str = "") -> Iterator[int]:
        request = groups_pb2.RetryNowRequest(group=group, id=id)
        while True:
            reply = self._ask(Groups.retry_now, request)
            yield reply.retries
            if not reply.next:
                return
            request.after = reply.next

    def skip_retry(self, group: str, id: str) -> int:
        return self._ask(Groups.skip_retry, groups_pb2.SkipRetryRequest(group=group, id=id)).skipped

    def delete_group(self, group: str, *, force: bool = False, dry_run: bool = False) -> None:
        self._ask(Groups.delete, groups_pb2.DeleteGroupRequest(group=group, force=force, dry_run=dry_run))

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


def _destination(to: Start) -> dict[str, Any]:
    return {"at_us" if to.kind == "time" else to.kind: to.value if to.kind in {"time", "offset"} else True}


def _given(change: GroupChange | CheckChange) -> dict[str, Any]:
    return {name: value for name, value in asdict(change).items() if value is not None}


def _summary(summary: groups_pb2.GroupSummary) -> GroupSummary:
    return GroupSummary(
        group=summary.group,
        members=None,
        waiting=sum(lag.waiting for lag in summary.topics),
        retrying=sum(lag.retrying for lag in summary.topics),
        dead=sum(lag.dead for lag in summary.topics),
        topics=[
            TopicLag(topic=lag.topic, waiting=lag.waiting, retrying=lag.retrying, dead=lag.dead)
            for lag in summary.topics
        ],
        created_at=moment(summary.created_at_us),
    )


def _checks(settings: groups_pb2.CheckSettings) -> CheckSettings:
    values = {name: getattr(settings, name) for name in _CHECKS}
    return CheckSettings(group=settings.group, own=list(settings.own), **values)


def _settings(settings: groups_pb2.GroupSettings) -> GroupSettings:
    return GroupSettings(
        retry_delays_s=list(settings.retry_delays_s) or None,
        retries=settings.retries_max if settings.HasField("retries_max") else None,
        poisoned_key=settings.poisoned_key,
        rate=settings.deliver_rate_max or None,
        stopped=settings.stopped,
        orderly=settings.orderly,
    )


def _queues(queues: Sequence[groups_pb2.GroupQueue]) -> list[GroupQueue]:
    return [GroupQueue(owner=None, **{name: getattr(queue, name) for name in _QUEUE}) for queue in queues]


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


def _retry(retry: groups_pb2.Retry) -> Retry:
    return Retry(
        id=message_id(UUID(bytes=retry.transaction_id), retry.n),
        topic=retry.topic,
        queue=retry.queue,
        offset=retry.offset,
        key=retry.key or None,
        tag=retry.tag or None,
        ordering_key=retry.ordering_key or None,
        stored_at=moment(retry.stored_at_us),
        attempts=retry.attempts,
        due_at=moment(retry.due_at_us),
        last_error=retry.last_error or None,
        failures=failures_of(retry.failures),
        generation=retry.generation,
        body_size_bytes=retry.size_bytes,
    )
