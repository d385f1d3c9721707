"""The service Admin: half messages for people. Decides which of them a caller may see and decide."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from uuid import UUID

from txmsg.administration.ask import Nothing
from txmsg.administration.halves import HalfDecision, HalfMessage, HalfPage, HalfQuery, Resumed, ResumeHalves, Stats
from txmsg.broker.api.notify import DeliveryService
from txmsg.broker.clients import AttachedClients
from txmsg.broker.retention import DropCounts
from txmsg.broker.service import NotifyService
from txmsg.broker.store.audit import AuditLog
from txmsg.broker.store.batch import DecidedBy
from txmsg.broker.store.group_administration import GroupAdministration
from txmsg.broker.store.halves import HalfMessages
from txmsg.errors import ProtocolError, TxmsgError, shown
from txmsg.message import check_name, datetime_of_us, us_of_datetime
from txmsg.runtime.logs import EventLog
from txmsg.wire.access.permissions import ADMINISTER_GROUP, DESCRIBE_GROUP, READ_TOPIC
from txmsg.wire.caller import may, names_for, require

_log = EventLog(__name__)
_NO_GROUP = "-"
"""A name that no group has: a transaction that is stored between the check and the decision was not checked, and is not
decided."""
_LIST_SIZE_BYTES_MAX = 16 * 1024 * 1024
_TOKEN = re.compile(r"(\d{1,17})\.([0-9a-f-]{36})\.(\d{1,5})")


class AdminApi:
    """The service Admin."""

    def __init__(
        self,
        service: NotifyService,
        delivery: DeliveryService,
        halves: HalfMessages,
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

    async def list_halves(self, query: HalfQuery) -> HalfPage:
        if query.group:
            check_name("group", query.group)
        found, more = await self._halves.list(
            query,
            after=None if query.after is None else _place(query.after),
            size_bytes_max=_LIST_SIZE_BYTES_MAX,
            groups=names_for(DESCRIBE_GROUP),
        )
        return HalfPage(
            halves=[self._shown(half, with_bodies=query.with_bodies) for half in found],
            next=_token(found[-1]) if more else None,
        )

    def _shown(self, half: HalfMessage, *, with_bodies: bool) -> HalfMessage:
        half = replace(half, clients=self._clients.able(half.group, half.fence_id))
        if with_bodies and not may(READ_TOPIC, half.topic):
            return replace(half, headers={}, body=b"", is_withheld=True)
        return half

    async def resolve_half(self, decision: HalfDecision) -> Nothing:
        transaction_id, commit = decision.transaction_id, decision.commit
        action, target = f"half.{'commit' if commit else 'rollback'}", str(transaction_id)
        group = await self._group_to_administer(transaction_id)
        # Before the decision, as the batch is not a transaction of ours: no decision is without an entry.
        await self._audit.record(action, target, after={"reason": decision.reason})
        try:
            problems = await self._service.end_transactions(
                commit=[transaction_id.bytes] if commit else (),
                rollback=() if commit else [transaction_id.bytes],
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
            transaction_id=transaction_id,
            outcome="committed" if commit else "rolled back",
            reason=decision.reason or "no reason given",
        )
        return Nothing()

    async def resume_halves(self, request: ResumeHalves) -> Resumed:
        transaction_id, group = request.transaction_id, request.group
        if (transaction_id is None) == (not group):
            raise ProtocolError("resume one transaction id or one group at a time")
        if group:
            check_name("group", group)
        if transaction_id is not None:
            await self._group_to_administer(transaction_id)
        resumed = await self._halves.resume(transaction_id=transaction_id, group=group)
        self._on_resume()
        return Resumed(resumed=resumed)

    async def _group_to_administer(self, transaction_id: UUID) -> str:
        """Return the producer group of an undecided transaction; _NO_GROUP for others. Raises PermissionDenied."""
        group = (await self._halves.held([transaction_id])).get(transaction_id)
        if group is None:
            return _NO_GROUP
        require(ADMINISTER_GROUP, group)
        return group

    async def stats(self, request: Nothing) -> Stats:
        halves, in_doubt = await self._halves.count()
        await self._delivery.flush()
        counts = self._service.counts
        return Stats(
            halves=halves,
            in_doubt=in_doubt,
            committed_by_client=counts.committed_by_client,
            rolled_back_by_client=counts.rolled_back_by_client,
            committed_by_check=counts.committed_by_check,
            rolled_back_by_check=counts.rolled_back_by_check,
            segments_dropped=self._drops.segments,
            unread_dropped=self._drops.unread_messages,
            groups=await self._groups.lag(),
        )


def _token(half: HalfMessage) -> str:
    return f"{us_of_datetime(half.stored_at)}.{half.transaction_id}.{half.n}"


def _place(token: str) -> tuple[datetime, UUID, int]:
    found = _TOKEN.fullmatch(token)
    if found is None:
        raise ProtocolError(f"{shown(token)} is not a page of half messages: give the last value of `next`")
    return datetime_of_us(int(found[1])), UUID(found[2]), int(found[3])
