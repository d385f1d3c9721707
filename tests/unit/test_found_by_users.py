"""Search results for users with few rights, and the audit of their decisions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, NamedTuple
from uuid import UUID

import pytest

from tests.closed_pool import ClosedService, closed_pool
from txmsg.administration.halves import HalfDecision
from txmsg.administration.messages import EndedTransaction, JournalEntry, MessageJournal, TraceQuery
from txmsg.broker.api.admin import AdminApi
from txmsg.broker.api.messages import MessagesApi
from txmsg.broker.clients import AttachedClients
from txmsg.broker.retention import DropCounts
from txmsg.broker.service import Problems
from txmsg.broker.store.audit import AuditLog
from txmsg.broker.store.batch import DecidedBy
from txmsg.broker.store.body_keys import BodyKeyStore
from txmsg.broker.store.connect import Pool
from txmsg.broker.store.group_administration import GroupAdministration
from txmsg.broker.store.halves import HalfMessages
from txmsg.broker.store.messages import Located, Messages
from txmsg.errors import Overloaded
from txmsg.wire.access.limits import Usage
from txmsg.wire.access.principal import Principal
from txmsg.wire.access.rules import Rights, parse_rule
from txmsg.wire.caller import Caller, answering
from txmsg.wire.changes import State

AT = datetime(2026, 11, 23, tzinfo=UTC)
ID = UUID(int=1)


class User(NamedTuple):
    """The user of a call."""

    principal: Principal
    caller: Caller
    usage: Usage | None = None


@contextmanager
def as_user(*rules: str) -> Iterator[None]:
    """Run the block as a user with these rights."""
    rights = Rights(parse_rule("ada", *rule.split(" ")) for rule in rules)
    calling = User(Principal("ada", rights=rights), Caller("ada", "peer"))
    token = answering.set(calling)
    try:
        yield
    finally:
        answering.reset(token)


def entry(seq: int, group: str | None) -> JournalEntry:
    return JournalEntry(seq=seq, at=AT, event="delivered", group=group, by="peer", attempt=1)


class RolledBackStore(Messages):
    """A store with one rolled back transaction."""

    async def of_id(
        self, transaction_id: UUID, n: int | None, *, limit: int, with_bodies: bool, size_bytes_max: int
    ) -> tuple[Sequence[Located], bool]:
        return [], False

    async def ended(self, transaction_id: UUID) -> EndedTransaction:
        return EndedTransaction(
            at=AT,
            taken_back=False,
            topic="orders",
            half_stored_at=AT,
            producer_group="shop",
            decided_by="client",
            journal=MessageJournal(since=AT),
        )

    async def journal_of(
        self, transaction_id: UUID, n: int, *, queue_id: int | None, queue_offset: int | None, since: datetime | None
    ) -> Sequence[JournalEntry]:
        return [entry(1, None), entry(2, "billing"), entry(3, "audit")]


async def test_a_journal_shows_only_groups_that_the_user_may_describe() -> None:
    pool = closed_pool()
    with as_user("describe topic:orders", "describe group:billing"):
        reply = await MessagesApi(RolledBackStore(pool), BodyKeyStore(pool)).trace(TraceQuery(id=str(ID)))
    assert reply.ended is not None
    assert [each.seq for each in reply.ended.journal.entries] == [1, 2]


class FullService(ClosedService):
    async def end_transactions(
        self,
        *,
        commit: Sequence[bytes] = (),
        rollback: Sequence[bytes] = (),
        unknown: Sequence[bytes] = (),
        by: DecidedBy = DecidedBy.CLIENT,
        group: str = "",
    ) -> Problems:
        raise Overloaded("the queue of the broker is full")


class OneHalf(HalfMessages):
    async def held(self, transaction_ids: Sequence[UUID]) -> Mapping[UUID, str]:
        return {ID: "shop"}


class RecordingAudit(AuditLog):
    """An audit log that keeps its actions in memory."""

    def __init__(self, pool: Pool) -> None:
        super().__init__(pool)
        self.noted: list[str] = []

    async def record(
        self, action: str, target: str, *, before: State = None, after: State = None, caller: Caller | None = None
    ) -> None:
        self.noted.append(action)


async def test_a_decision_that_failed_is_recorded_as_refused() -> None:
    pool = closed_pool()
    audit = RecordingAudit(pool)
    delivery: Any = None
    api = AdminApi(
        FullService(),
        delivery,
        OneHalf(pool),
        GroupAdministration(pool),
        AttachedClients(),
        audit=audit,
        drops=DropCounts(),
        on_resume=lambda: None,
    )
    with as_user("administer group:shop"), pytest.raises(Overloaded):
        await api.resolve_half(HalfDecision(transaction_id=ID, commit=True))
    assert audit.noted == ["half.commit", "half.refused"]
