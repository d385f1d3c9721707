"""What users with few rights get of what they find, and what is recorded of what they decide."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from txmsg.access.principal import Principal
from txmsg.access.rules import Rights, parse_rule
from txmsg.broker.api.admin import AdminApi
from txmsg.broker.api.messages import MessagesApi
from txmsg.broker.store.journal import EntryRow
from txmsg.broker.store.messages import EndedRow
from txmsg.errors import Overloaded
from txmsg.wire.caller import Caller, answering
from txmsg.wire.v1.messages_pb2 import TraceRequest
from txmsg.wire.v1.txmsg_pb2 import ResolveHalfRequest

AT = datetime(2026, 11, 23, tzinfo=UTC)
ID = UUID(int=1)


@contextmanager
def as_user(*rules: str) -> Iterator[None]:
    """What runs inside is done for a user with these rights."""
    rights = Rights(parse_rule("ada", *rule.split(" ")) for rule in rules)
    calling = SimpleNamespace(principal=Principal("ada", rights=rights), caller=Caller("ada", "peer"), usage=None)
    token = answering.set(calling)
    try:
        yield
    finally:
        answering.reset(token)


def entry(seq: int, group: str | None) -> EntryRow:
    return EntryRow(
        seq=seq,
        at=AT,
        event="delivered",
        group_name=group,
        actor="peer",
        attempt=1,
        detail=None,
        until=None,
        entries=None,
    )


class Found:
    """A store with one transaction that was rolled back."""

    async def of_id(self, *_: object, **__: object) -> list[object]:
        return []

    async def ended(self, _: UUID) -> EndedRow:
        return EndedRow(
            at=AT,
            committed=False,
            topic="orders",
            half_stored_at=AT,
            producer_group="shop",
            decided_by=1,
            journal_since=AT,
        )

    async def journal_of(self, *_: object, **__: object) -> list[EntryRow]:
        return [entry(1, None), entry(2, "billing"), entry(3, "audit")]


async def test_a_journal_tells_only_of_groups_that_may_be_described() -> None:
    found: Any = Found()
    with as_user("describe topic:orders", "describe group:billing"):
        reply = await MessagesApi(found, found).trace(TraceRequest(id=str(ID)))
    assert [each.seq for each in reply.ended.journal.entries] == [1, 2]


async def test_a_decision_that_was_not_carried_out_is_noted_as_refused() -> None:
    noted: list[str] = []

    async def held(_: object) -> dict[UUID, str]:
        return {ID: "shop"}

    async def end(**_: object) -> None:
        raise Overloaded("the queue of the broker is full")

    async def record(action: str, *_: object, **__: object) -> None:
        noted.append(action)

    none: Any = None
    api = AdminApi(
        SimpleNamespace(end=end),  # type: ignore[arg-type]
        none,
        SimpleNamespace(held=held),  # type: ignore[arg-type]
        none,
        none,
        audit=SimpleNamespace(record=record),  # type: ignore[arg-type]
        drops=none,
        on_resume=none,
    )
    with as_user("administer group:shop"), pytest.raises(Overloaded):
        await api.resolve_half(ResolveHalfRequest(transaction_id=ID.bytes, commit=True))
    assert noted == ["half.commit", "half.refused"]
