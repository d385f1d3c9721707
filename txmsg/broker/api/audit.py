"""The service Audit: who changed what, for people. Decides nothing."""

from __future__ import annotations

from txmsg.broker.store.audit import AuditFilter, AuditLog, AuditRow
from txmsg.message import datetime_of_us, us_of_datetime
from txmsg.wire.v1 import audit_pb2 as pb

_LIMIT_MAX = 1000


class AuditApi:
    """The service Audit."""

    def __init__(self, log: AuditLog) -> None:
        self._log = log

    async def list(self, request: pb.ListAuditRequest) -> pb.ListAuditReply:
        limit = min(request.limit or 100, _LIMIT_MAX)
        which = AuditFilter(
            since=datetime_of_us(request.since_us) if request.since_us else None,
            who=request.who or None,
            action=request.action or None,
            target=request.target or None,
        )
        before_id = min(request.before_id, 2**63 - 1) or None
        rows = await self._log.list(which, before_id=before_id, limit=limit + 1)
        more = len(rows) > limit
        return pb.ListAuditReply(entries=[_entry(row) for row in rows[:limit]], next=rows[limit - 1].id if more else 0)


def _entry(row: AuditRow) -> pb.AuditEntry:
    return pb.AuditEntry(
        id=row.id,
        at_us=us_of_datetime(row.at),
        who=row.who,
        address=row.address,
        action=row.action,
        target=row.target,
        before=row.before,
        after=row.after,
    )
