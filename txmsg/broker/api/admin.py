"""The service Admin: what people ask of a broker, in their commands. Decides nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from uuid import UUID

from txmsg.access.permissions import ADMINISTER_GROUP, DESCRIBE_GROUP, READ_TOPIC
from txmsg.broker.api.notify import DeliveryService
from txmsg.broker.clients import AttachedClients
from txmsg.broker.retention import DropCounts
from txmsg.broker.service import NotifyService
from txmsg.broker.store.audit import AuditLog
from txmsg.broker.store.batch import DecidedBy
from txmsg.broker.store.group_administration import GroupAdministration
from txmsg.broker.store.halves import HalfRow, Halves
from txmsg.broker.store.topics import TopicRow
from txmsg.errors import ProtocolError, TxmsgError, shown
from txmsg.logs import EventLog
from txmsg.message import check_name, datetime_of_us, us_of_datetime
from txmsg.wire.caller import may, names_for, require
from txmsg.wire.codec import ids_of_bytes, slices_of_ids
from txmsg.wire.v1 import txmsg_pb2 as pb

_log = EventLog(__name__)
_NO_GROUP = "-"
"""The name of none: what comes between looking and deciding was not looked at, and is not decided."""
_LIST_SIZE_BYTES_MAX = 16 * 1024 * 1024
_TOKEN = re.compile(r"(\d{1,17})\.([0-9a-f-]{36})\.(\d{1,5})")


class AdminApi:
    """The service Admin."""

    def __init__(
        self,
        service: NotifyService,
        delivery: DeliveryService,
        halves: Halves,
        groups: GroupAdministration,
        clients: AttachedClients,
        *,
        audit: AuditLog,
        drops: DropCounts,
        on_resume: Callable[[], None],
    ) -> None:
        self._service = service
        self._delivery = delivery
        self._halves = halves
        self._groups = groups
        self._clients = clients
        self._audit = audit
        self._drops = drops
        self._on_resume = on_resume

    async def create_topic(self, request: pb.CreateTopicRequest) -> pb.CreateTopicReply:
        row, created = await self._service.topics.create(
            request.name,
            request.queues,
            erasable_s=request.erasable_s or None,
            message_type=request.message_type or None,
        )
        return pb.CreateTopicReply(topic=_topic(row), created=created)

    async def list_halves(self, request: pb.ListHalvesRequest) -> pb.ListHalvesReply:
        ids = ids_of_bytes(request.transaction_id)
        if len(ids) > 1:
            raise ProtocolError(f"give one transaction id, not {len(ids)}")
        limit = min(request.limit or 100, 10_000)
        found = await self._halves.list(
            group=check_name("group", request.group) if request.group else "",
            parked_only=request.parked_only,
            transaction_id=ids[0] if ids else None,
            after=_place(request.after) if request.after else None,
            limit=limit + 1,
            with_bodies=request.with_bodies,
            size_bytes_max=_LIST_SIZE_BYTES_MAX,
            groups=names_for(DESCRIBE_GROUP),
        )
        rows = found[:limit]
        return pb.ListHalvesReply(
            halves=[
                _half(row, self._clients.able(row.group_name, row.fence_id), with_bodies=request.with_bodies)
                for row in rows
            ],
            next=_token(rows[-1]) if rows and rows[-1].more else "",
        )

    async def resolve_half(self, request: pb.ResolveHalfRequest) -> pb.ResolveHalfReply:
        ids = slices_of_ids(request.transaction_id)
        if len(ids) != 1:
            raise ProtocolError(f"resolve one transaction id at a time, not {len(ids)}")
        action, target = f"half.{'commit' if request.commit else 'rollback'}", str(UUID(bytes=bytes(ids[0])))
        group = await self._group_to_administer(UUID(bytes=bytes(ids[0])))
        # Before it, as the batch is not a transaction of ours: there is no decision without an entry.
        await self._audit.record(action, target, after={"reason": request.reason})
        try:
            problems = await self._service.end(
                commit=ids if request.commit else (),
                rollback=() if request.commit else ids,
                by=DecidedBy.PERSON,
                group=group,
            )
            for error in problems.values():
                raise error
        except TxmsgError as exc:
            await self._audit.record("half.refused", target, after={"error": str(exc)})
            raise
        _log.info(
            "half.decided_by_operator",
            "transaction %(transaction_id)s: %(outcome)s by an operator: %(reason)s",
            transaction_id=UUID(bytes=bytes(ids[0])),
            outcome="committed" if request.commit else "rolled back",
            reason=request.reason or "no reason given",
        )
        return pb.ResolveHalfReply()

    async def resume_halves(self, request: pb.ResumeHalvesRequest) -> pb.ResumeHalvesReply:
        ids = ids_of_bytes(request.transaction_id)
        if len(ids) + bool(request.group) != 1:
            raise ProtocolError("resume one transaction id or one group at a time")
        if ids:
            await self._group_to_administer(ids[0])
        resumed = await self._halves.resume(
            transaction_id=ids[0] if ids else None, group=check_name("group", request.group) if request.group else ""
        )
        self._on_resume()
        return pb.ResumeHalvesReply(resumed=resumed)

    async def _group_to_administer(self, transaction_id: UUID) -> str:
        """The producer group of an undecided transaction; _NO_GROUP if it is not. Raises PermissionDenied."""
        group = (await self._halves.held([transaction_id])).get(transaction_id)
        if group is None:
            return _NO_GROUP
        require(ADMINISTER_GROUP, group)
        return group

    async def stats(self, request: pb.StatsRequest) -> pb.StatsReply:
        halves, in_doubt = await self._halves.count()
        await self._delivery.flush()
        counts = self._service.counts
        return pb.StatsReply(
            halves=halves,
            in_doubt=in_doubt,
            committed_by_client=counts.committed_by_client,
            rolled_back_by_client=counts.rolled_back_by_client,
            committed_by_check=counts.committed_by_check,
            rolled_back_by_check=counts.rolled_back_by_check,
            segments_dropped=self._drops.segments,
            unread_dropped=self._drops.unread_messages,
            groups=[
                pb.GroupLag(group=lag.group, topic=lag.topic, waiting=lag.waiting, retrying=lag.retrying, dead=lag.dead)
                for lag in await self._groups.lag()
            ],
        )


def _topic(row: TopicRow) -> pb.Topic:
    return pb.Topic(name=row.name, queues=row.queue_count, created_at_us=_us(row.created_at))


def _us(moment: datetime | None) -> int:
    return 0 if moment is None else us_of_datetime(moment)


def _token(row: HalfRow) -> str:
    return f"{us_of_datetime(row.stored_at)}.{row.transaction_id}.{row.n}"


def _place(token: str) -> tuple[datetime, UUID, int]:
    found = _TOKEN.fullmatch(token)
    if found is None:
        raise ProtocolError(f"{shown(token)} is not a page of half messages: give the last value of `next`")
    return datetime_of_us(int(found[1])), UUID(found[2]), int(found[3])


def _half(row: HalfRow, clients: int, *, with_bodies: bool) -> pb.Half:
    withheld = with_bodies and not may(READ_TOPIC, row.topic)
    return pb.Half(
        transaction_id=row.transaction_id.bytes,
        n=row.n,
        topic=row.topic,
        group=row.group_name,
        fence_id=row.fence_id.bytes if row.fence_id else b"",
        key=row.key or "",
        tag=row.tag or "",
        headers=b"" if withheld else row.headers or b"",
        body=b"" if withheld else row.body,
        withheld=withheld,
        born_at_us=_us(row.born_at),
        stored_at_us=_us(row.stored_at),
        next_check_at_us=_us(row.next_check_at),
        checks=row.checks,
        parked_reason=row.parked_reason or "",
        ordering_key=row.ordering_key or "",
        decided=row.decided,
        held_back_by=row.held_back_by.bytes if row.held_back_by else b"",
        deliver_at_us=_us(row.deliver_at),
        clients=clients,
    )
