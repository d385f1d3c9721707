"""The service Groups: consumer groups, looked at, changed, and sent elsewhere. Decides nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

from txmsg.access.permissions import DESCRIBE_GROUP
from txmsg.administration import CheckChange, GroupChange
from txmsg.broker.api.withheld import error_of, error_of_any, failure_of
from txmsg.broker.check_policies import GroupChecks
from txmsg.broker.clients import AttachedClients
from txmsg.broker.store.check_policies import CheckPolicyRow
from txmsg.broker.store.consumer_groups import GroupRow
from txmsg.broker.store.group_administration import GroupAdministration, GroupQueueRow
from txmsg.broker.store.retry_administration import RetryAdministration, RetryPlace, RetryShown
from txmsg.errors import MisuseError, ProtocolError, shown
from txmsg.message import Offset, QueueId, check_name, datetime_of_us, parse_id, us_of_datetime
from txmsg.runtime.start import Start
from txmsg.wire.caller import names_for
from txmsg.wire.v1 import groups_pb2 as pb

_CHECKS = ("first_check_s", "check_interval_s", "checks_max", "no_client_park_s")
_TOKEN = re.compile(r"(-|\d{1,17})\.(\d{1,9})\.(\d{1,18})")


class Presence(Protocol):
    """Who of a group is there, as this broker sees it."""

    def members_of(self, group: str) -> Sequence[tuple[str, float]]:
        """(client id, seconds since it asked for messages last)."""
        ...

    def pause_of(self, group: str) -> tuple[float, str] | None:
        """For how many seconds the group has got single messages, because everything fails, and the last error."""
        ...


class GroupsApi:
    """The service Groups."""

    def __init__(
        self,
        groups: GroupAdministration,
        retries: RetryAdministration,
        presence: Presence,
        checks: GroupChecks,
        clients: AttachedClients,
    ) -> None:
        self._clients = clients
        self._groups = groups
        self._retries = retries
        self._checks = checks
        self._presence = presence

    async def list(self, request: pb.ListGroupsRequest) -> pb.ListGroupsReply:
        limit = min(request.limit or 1000, 10_000)
        after, contains, names = request.after, request.contains, names_for(DESCRIBE_GROUP)
        rows, lags = await self._groups.list(limit + 1, after=after, contains=contains, names=names)
        producers = await self._checks.list(limit + 1, after=after, contains=contains, names=names)
        # Both kinds have the same pages, so the kind that is cut first ends the page of the other.
        kinds = ([name for name, _ in rows], [row.group_name for row in producers])
        end = min((names[limit - 1] for names in kinds if len(names) > limit), default="")
        groups = {
            name: pb.GroupSummary(group=name, created_at_us=us_of_datetime(created_at))
            for name, created_at in rows
            if not end or name <= end
        }
        for lag in lags:
            if lag.group in groups:
                groups[lag.group].topics.append(
                    pb.TopicLag(topic=lag.topic, waiting=lag.waiting, retrying=lag.retrying, dead=lag.dead)
                )
        return pb.ListGroupsReply(
            groups=groups.values(),
            next=end,
            producer_groups=[self._check_settings(row) for row in producers if not end or row.group_name <= end],
        )

    async def show_checks(self, request: pb.ShowChecksRequest) -> pb.ShowChecksReply:
        row = await self._checks.show(check_name("group", request.group))
        return pb.ShowChecksReply(settings=self._check_settings(row))

    async def alter_checks(self, request: pb.AlterChecksRequest) -> pb.AlterChecksReply:
        change = CheckChange(
            default_checks=request.default_checks,
            **{name: getattr(request, name) for name in _CHECKS if request.HasField(name)},
        )
        row = await self._checks.alter(check_name("group", request.group), change)
        return pb.AlterChecksReply(settings=self._check_settings(row))

    def _check_settings(self, row: CheckPolicyRow) -> pb.CheckSettings:
        try:
            policy = self._checks.policy_of(row)
        except ValueError:  # it does not fit the settings of this broker, which goes by its own
            policy = self._checks.policy_of(CheckPolicyRow(group_name=row.group_name))
        return pb.CheckSettings(
            group=row.group_name,
            first_check_s=policy.first_check_s,
            check_interval_s=policy.interval_s,
            checks_max=policy.checks_max,
            no_client_park_s=policy.no_client_park_s,
            own=[name for name in _CHECKS if getattr(row, name) is not None],
        )

    async def show(self, request: pb.ShowGroupRequest) -> pb.ShowGroupReply:
        name = check_name("group", request.group)
        if request.settings_only:
            return pb.ShowGroupReply(settings=_settings(await self._groups.settings(name)))
        group, created_at, queues = await self._groups.show(name)
        paused_s, last_error = self._presence.pause_of(name) or (None, "")
        topics = sorted({queue.topic for queue in queues})
        return pb.ShowGroupReply(
            settings=_settings(group),
            created_at_us=us_of_datetime(created_at),
            queues=[_queue(queue) for queue in queues],
            members=self._members(name),
            paused=paused_s is not None,
            paused_s=paused_s or 0.0,
            last_error=error_of_any(topics, last_error),
        )

    def _members(self, group: str) -> Sequence[pb.GroupMember]:
        attached = {client.client_id: client for client in self._clients.all() if client.consumer_group == group}
        members = []
        for client_id, silent_s in self._presence.members_of(group):
            member = pb.GroupMember(client_id=client_id, silent_s=silent_s)
            if (client := attached.get(client_id)) is not None:
                member.host, member.pid, member.release = client.host, client.pid, client.release
                member.since_us = us_of_datetime(client.since)
            members.append(member)
        return members

    async def alter(self, request: pb.AlterGroupRequest) -> pb.AlterGroupReply:
        change = GroupChange(
            retry_delays_s=list(request.retry_delays_s) or None,
            default_retries=request.default_retries,
            retries_max=request.retries_max if request.HasField("retries_max") else None,
            poisoned_key=request.poisoned_key if request.HasField("poisoned_key") else None,
            deliver_rate_max=request.deliver_rate_max if request.HasField("deliver_rate_max") else None,
            stopped=request.stopped if request.HasField("stopped") else None,
            orderly=request.orderly if request.HasField("orderly") else None,
            create=request.create,
        )
        return pb.AlterGroupReply(
            settings=_settings(await self._groups.alter(check_name("group", request.group), change))
        )

    async def seek(self, request: pb.SeekRequest) -> pb.SeekReply:
        match request.WhichOneof("to"):
            case "earliest":
                to = Start.earliest()
            case "latest":
                to = Start.latest()
            case "at_us":
                to = Start.at(datetime_of_us(request.at_us))
            case "offset":
                to = Start.offset(min(request.offset, 2**63 - 1))
            case _:
                raise ProtocolError("a seek needs a position: the earliest or latest message, a time, or an offset")
        group, topic = check_name("group", request.group), check_name("topic", request.topic)
        number = request.queue if request.HasField("queue") else None
        if request.dry_run:
            plan = await self._groups.plan_seek(group, topic, number, to)
            return pb.SeekReply(queues=[_queue(queue) for queue, _ in plan], to=[place for _, place in plan])
        queues = await self._groups.seek(group, topic, number, to, again=request.again)
        return pb.SeekReply(queues=[_queue(queue) for queue in queues])

    async def list_retries(self, request: pb.ListRetriesRequest) -> pb.ListRetriesReply:
        limit = min(request.limit or 100, 10_000)
        after = _place(request.after) if request.after else None
        rows = await self._retries.list(check_name("group", request.group), after=after, limit=limit + 1)
        end = _token(rows[limit - 1].place) if len(rows) > limit else ""
        return pb.ListRetriesReply(retries=[_retry(row) for row in rows[:limit]], next=end)

    async def retry_now(self, request: pb.RetryNowRequest) -> pb.RetryNowReply:
        which = parse_id(request.id) if request.id else (None, None)
        after = _place(request.after) if request.after else None
        count, end = await self._retries.now(check_name("group", request.group), *which, after=after)
        return pb.RetryNowReply(retries=count, next="" if end is None else _token(end))

    async def skip_retry(self, request: pb.SkipRetryRequest) -> pb.SkipRetryReply:
        skipped = await self._retries.skip(check_name("group", request.group), *parse_id(request.id))
        return pb.SkipRetryReply(skipped=skipped)

    async def delete(self, request: pb.DeleteGroupRequest) -> pb.DeleteGroupReply:
        name = check_name("group", request.group)
        members = self._presence.members_of(name)
        if members and not request.force:
            last_seen_s = min(silent_s for _, silent_s in members)
            raise MisuseError(
                f"group {name!r} has {len(members)} members, the last seen {last_seen_s:.0f} s ago: stop its "
                "consumers first, which would recreate it"
            )
        await self._groups.delete(name, force=request.force, dry_run=request.dry_run)
        return pb.DeleteGroupReply()


def _token(place: RetryPlace) -> str:
    due = "-" if place.due_at is None else us_of_datetime(place.due_at)
    return f"{due}.{place.queue_id}.{place.queue_offset}"


def _place(token: str) -> RetryPlace:
    found = _TOKEN.fullmatch(token)
    if found is None:
        raise ProtocolError(f"{shown(token)} is not a page of retries: give the last value of `next`")
    due_at = None if found[1] == "-" else datetime_of_us(int(found[1]))
    return RetryPlace(due_at, QueueId(int(found[2])), Offset(int(found[3])))


def _retry(row: RetryShown) -> pb.Retry:
    return pb.Retry(
        topic=row.topic,
        queue=row.number,
        offset=row.queue_offset,
        transaction_id=row.transaction_id.bytes,
        n=row.n,
        key=row.key or "",
        tag=row.tag or "",
        ordering_key=row.ordering_key or "",
        stored_at_us=us_of_datetime(row.stored_at),
        attempts=row.attempt,
        due_at_us=us_of_datetime(row.due_at) if row.due_at else 0,
        last_error=error_of(row.topic, row.last_error),
        failures=[failure_of(row.topic, failure) for failure in row.failures],
        generation=row.generation,
        size_bytes=row.size_bytes,
    )


def _settings(row: GroupRow) -> pb.GroupSettings:
    return pb.GroupSettings(
        group=row.name,
        retry_delays_s=row.retry_delays_s or (),
        retries_max=row.retries_max,
        poisoned_key=row.poisoned_key,
        deliver_rate_max=row.deliver_rate_max or 0,
        stopped=row.stopped,
        orderly=row.orderly,
        version=row.version,
    )


def _queue(row: GroupQueueRow) -> pb.GroupQueue:
    return pb.GroupQueue(
        topic=row.topic,
        queue=row.number,
        next_offset=row.next_offset,
        begin=row.begin,
        end=row.end,
        waiting=row.waiting,
        retrying=row.retrying,
        dead=row.dead,
        seeking=row.seeking,
    )
