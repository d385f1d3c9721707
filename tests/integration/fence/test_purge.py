"""Which rows a purge deletes."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime

import pytest
from sqlalchemy import (
    Engine,
    insert,
    update,
)

from tests.integration.fence.business import (
    recorded,
)
from txmsg.checker.fence import Fence, fence_table
from txmsg.errors import MisuseError
from txmsg.message import TransactionId, new_transaction_id


def age(engine: Engine, *ids: TransactionId) -> None:
    with engine.begin() as connection:
        old = datetime(2020, 1, 1, tzinfo=UTC)
        connection.execute(update(fence_table).where(fence_table.c.transaction_id.in_(ids)).values(created_at=old))


def test_purge_deletes_old_rows_that_no_broker_holds(engine: Engine, fence: Fence) -> None:
    old, old_and_held, young = (new_transaction_id() for _ in range(3))
    for each in (old, old_and_held, young):
        fence.check(each)
    age(engine, old, old_and_held)
    asked: list[TransactionId] = []

    def held(ids: list[TransactionId]) -> Collection[TransactionId]:
        asked.extend(ids)
        return {old_and_held}

    assert fence.purge(3600, held) == 1
    assert sorted(asked) == sorted([old, old_and_held])
    assert set(recorded(engine)) == {old_and_held, young}
    assert fence.purge(3600, held) == 0


def test_a_row_of_now_is_young_by_the_databases_clock(engine: Engine, fence: Fence) -> None:
    fence.check(new_transaction_id())
    assert fence.purge(600, lambda ids: []) == 0


def test_purge_gets_past_a_thousand_held_rows(engine: Engine, fence: Fence) -> None:
    ids = sorted(new_transaction_id() for _ in range(2500))
    with engine.begin() as connection:
        connection.execute(insert(fence_table), [{"transaction_id": each, "outcome": "commit"} for each in ids])
        connection.execute(update(fence_table).values(created_at=datetime(2020, 1, 1, tzinfo=UTC)))
    held = set(ids[:1200])
    assert fence.purge(600, held.intersection) == 1300
    assert set(recorded(engine)) == held


def test_a_purge_of_young_rows_is_refused(fence: Fence) -> None:
    with pytest.raises(MisuseError, match="600"):
        fence.purge(599, lambda ids: [])
