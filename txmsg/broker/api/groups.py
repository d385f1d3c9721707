"""The service Groups: consumer groups, listed, changed, moved. Decides what each caller may see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from txmsg.administration.ask import Nothing
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
    LiveGroupMember,
    RetriesDue,
    RetriesSkipped,
    RetryNow,
    RetryPage,
    RetryQuery,
    RetrySkip,
    Seek,
    SeekPlan,
)
from txmsg.broker.api.withheld import error_of_any, told
from txmsg.broker.check_policies import GroupChecks
from txmsg.broker.clients import AttachedClients
from txmsg.broker.store.group_administration import GroupAdministration
from txmsg.broker.store.retry_administration import RetryAdministration
from txmsg.errors import MisuseError
from txmsg.message import check_name
from txmsg.wire.access.permissions import DESCRIBE_GROUP
from txmsg.wire.caller import names_for


class GroupPresence(Protocol):
    """The members of groups that are present, as this broker sees them."""

    def members_of(self, group: str) -> Sequence[tuple[str, float]]:
        """Return (client id, seconds since it asked for messages last)."""
        ...

    def pause_of(self, group: str) -> tuple[float, str] | None:
        """Return the seconds for which the group has been paused and got single messages only, and the last error.

        A group is paused when all its messages fail; None if it is not.
        """
        ...


class GroupsApi:
    """The service Groups."""

    def __init__(
        self,
        groups: GroupAdministration,
        retries: RetryAdministration,
        presence: GroupPresence,
        checks: GroupChecks,
        clients: AttachedClients,
    ) -> None:
        self._clients = clients
        self._groups = groups
        self._retries = retries
        self._checks = checks
        self._presence = presence

    async def list(self, query: GroupQuery) -> GroupList:
        limit, after, contains, names = query.limit, query.after, query.contains, names_for(DESCRIBE_GROUP)
        groups = await self._groups.list(limit + 1, after=after, contains=contains, names=names)
        producers = await self._checks.list(limit + 1, after=after, contains=contains, names=names)
        # Both kinds have the same pages, so the kind that is cut first ends the page of the other.
        kinds = ([each.group for each in groups], [each.group for each in producers])
        end = min((names[limit - 1] for names in kinds if len(names) > limit), default=None)
        return GroupList(
            groups=[each for each in groups if end is None or each.group <= end],
            producer_groups=[each for each in producers if end is None or each.group <= end],
            next=end,
        )

    async def show(self, which: GroupName) -> GroupDetails:
        name = check_name("group", which.group)
        found = await self._groups.show(name)
        paused_s, last_error = self._presence.pause_of(name) or (None, "")
        topics = sorted({queue.topic for queue in found.queues})
        return replace(
            found,
            members=self._members(name),
            paused_s=None if paused_s is None else round(paused_s, 1),
            last_error=error_of_any(topics, last_error) or None,
        )

    def _members(self, group: str) -> Sequence[LiveGroupMember]:
        attached = {client.client_id: client for client in self._clients.all() if client.consumer_group == group}
        members = []
        for client_id, silent_s in self._presence.members_of(group):
            member = LiveGroupMember(id=client_id, silent_s=round(silent_s, 1))
            if (client := attached.get(client_id)) is not None:
                member = replace(member, host=client.host, pid=client.pid, release=client.release, since=client.since)
            members.append(member)
        return members

    async def show_settings(self, which: GroupName) -> GroupSettings:
        return await self._groups.settings(check_name("group", which.group))

    async def alter(self, change: GroupChange) -> GroupSettings:
        check_name("group", change.group)
        return await self._groups.alter(change)

    async def seek(self, seek: Seek) -> SeekPlan:
        check_name("group", seek.group)
        check_name("topic", seek.topic)
        return await self._groups.seek(seek)

    async def list_retries(self, query: RetryQuery) -> RetryPage:
        check_name("group", query.group)
        page = await self._retries.list(query)
        return replace(page, retries=[told(retry) for retry in page.retries])

    async def retry_now(self, which: RetryNow) -> RetriesDue:
        check_name("group", which.group)
        return await self._retries.now(which)

    async def skip_retry(self, which: RetrySkip) -> RetriesSkipped:
        check_name("group", which.group)
        return await self._retries.skip(which)

    async def delete(self, deletion: GroupDeletion) -> Nothing:
        name = check_name("group", deletion.group)
        # Only those at this broker, as members are known in memory: a check against mistakes, not a lock.
        members = self._presence.members_of(name)
        if members and not deletion.force:
            last_seen_s = min(silent_s for _, silent_s in members)
            raise MisuseError(
                f"group {name!r} has {len(members)} members, the last seen {last_seen_s:.0f} s ago: stop its "
                "consumers first, which would recreate it"
            )
        await self._groups.delete(name, force=deletion.force, dry_run=deletion.dry_run)
        return Nothing()

    async def show_checks(self, which: GroupName) -> CheckSettings:
        return await self._checks.show(check_name("group", which.group))

    async def alter_checks(self, change: CheckChange) -> CheckSettings:
        check_name("group", change.group)
        return await self._checks.alter(change)
