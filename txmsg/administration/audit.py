"""The audit log of a Notify database: changes and their authors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Final

from txmsg.wire.method import Method
from txmsg.wire.values import Natural, NumberRange


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """A change: its author and address, and the values before and after; None: nothing.

    id: ascending. who: a principal; "anyone" without authentication; "txmsg": a broker by itself, whose address is "".
    action: such as topic.alter. target: the name of the changed object; "" for none, or several.
    """

    id: int
    at: datetime
    who: str
    address: str
    action: str
    target: str
    before: Mapping[str, Any] | None = None
    after: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditQuery:
    """A query of entries that match all given values. action: a whole one, or its first part, such as `topic`."""

    since: datetime | None = None
    who: str = ""
    action: str = ""
    target: str = ""
    limit: Annotated[int, NumberRange(1, 1000)] = 100
    before_id: Natural | None = None
    """Only entries before this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditPage:
    """Entries, the newest first. next: before_id of the page after this one; None for the last one."""

    entries: Sequence[AuditEntry]
    next: int | None = None


class AuditService:
    """The service Audit."""

    list: Final = Method("Audit/List", AuditQuery, AuditPage)
