"""The audit log of a Notify database, by the service Audit of any of its brokers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from txmsg.administration import Ask, moment, new_request
from txmsg.message import us_of_datetime
from txmsg.wire.v1 import audit_pb2 as pb
from txmsg.wire.v1.audit_rpc import Audit


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """A change: who made it, from where, and what was there before and after; None: nothing."""

    id: int
    at: datetime | None
    who: str
    address: str
    action: str
    target: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditPage:
    """Entries, the newest first. next: what names the page after this one; None for the last one."""

    entries: Sequence[AuditEntry]
    next: int | None


class AuditAdministration:
    """What `txmsg audit` and the console look at. Calls block. Raises the errors of errors.py."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def list(
        self,
        *,
        since: datetime | None = None,
        who: str = "",
        action: str = "",
        target: str = "",
        limit: int = 100,
        before_id: int | None = None,
    ) -> AuditPage:
        """Entries for which all that is given holds. action: a whole one, or its first part, as `topic`."""
        request = new_request(
            pb.ListAuditRequest,
            since_us=us_of_datetime(since) if since else 0,
            who=who,
            action=action,
            target=target,
            limit=limit,
            before_id=before_id or 0,
        )
        reply = self._ask(Audit.list, request)
        return AuditPage(entries=[_entry(each) for each in reply.entries], next=reply.next or None)


def _entry(each: pb.AuditEntry) -> AuditEntry:
    return AuditEntry(
        id=each.id,
        at=moment(each.at_us),
        who=each.who,
        address=each.address,
        action=each.action,
        target=each.target,
        before=json.loads(each.before) if each.HasField("before") else None,
        after=json.loads(each.after) if each.HasField("after") else None,
    )
