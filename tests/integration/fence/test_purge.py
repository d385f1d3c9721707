"""Purges of fence rows."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import (
    Engine,
    insert,
    update,
)

from tests.broker_process import BrokerProcess
from tests.conftest import StartBroker
from tests.integration.fence.business import (
    ROLLBACK,
    recorded,
)
from txmsg.checker.fence import Fence
from txmsg.checker.tables import fence_table
from txmsg.client import Producer
from txmsg.client.fence import held_by
from txmsg.client.flows import undecided
from txmsg.errors import MisuseError
from txmsg.message import Message, TransactionId, new_transaction_id
from txmsg.ops.cli.main import main


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


def test_the_age_of_a_row_is_measured_by_the_clock_of_the_database(engine: Engine, fence: Fence) -> None:
    fence.check(new_transaction_id())
    assert fence.purge(600, lambda ids: []) == 0


def test_a_purge_continues_past_a_thousand_held_rows(engine: Engine, fence: Fence) -> None:
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


# ---- by the command, asking brokers


def hold(broker: BrokerProcess, fence: Fence) -> TransactionId:
    """Store an undecided half message with its fence row."""
    with Producer(broker.address, group="shop") as producer:
        half = producer.half([Message("user", b"x")])
    assert fence.check(half.transaction_id) is ROLLBACK
    return half.transaction_id


def purge_by_command(engine: Engine, *addresses: str, driver: str = "postgresql+psycopg") -> Result:
    brokers = [word for address in addresses for word in ("--broker", address)]
    url = engine.url.set(drivername=driver).render_as_string(hide_password=False)
    return CliRunner().invoke(main, ["fence", "purge", "--database", url, *brokers])


def test_nothing_is_purged_while_a_notify_database_is_unavailable(
    postgres_engine: Engine, start_broker: StartBroker, other_notify_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fence = Fence(postgres_engine)
    brokers = [start_broker(), start_broker(storage=other_notify_url)]
    held = {hold(broker, fence) for broker in brokers}
    settled = new_transaction_id()
    fence.check(settled)
    age(postgres_engine, settled, *held)
    addresses = [broker.address for broker in brokers]

    brokers[1].kill()
    with monkeypatch.context() as patch:
        patch.setattr(undecided, "_TIMEOUT_S", 3.0)
        refused = purge_by_command(postgres_engine, *addresses)
    assert refused.exit_code == 1
    assert addresses[1] in refused.stderr
    assert "purge again when it is back" in refused.stderr
    assert set(recorded(postgres_engine)) == {settled, *held}

    brokers[1].start()
    done = purge_by_command(postgres_engine, *addresses)
    assert (done.exit_code, done.stdout) == (0, "fence rows deleted: 1\n")
    assert set(recorded(postgres_engine)) == held


def test_the_command_accepts_an_async_url(postgres_engine: Engine, broker: BrokerProcess) -> None:
    fence = Fence(postgres_engine)
    held, settled = hold(broker, fence), new_transaction_id()
    fence.check(settled)
    age(postgres_engine, settled, held)
    done = purge_by_command(postgres_engine, broker.address, driver="postgresql+asyncpg")
    assert (done.exit_code, done.stdout) == (0, "fence rows deleted: 1\n")
    assert set(recorded(postgres_engine)) == {held}


def test_a_silent_notify_database_is_reported_even_when_no_row_is_old(
    postgres_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(undecided, "_TIMEOUT_S", 0.5)
    Fence(postgres_engine).check(new_transaction_id())
    refused = purge_by_command(postgres_engine, "localhost:1")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "the Notify database of localhost:1 cannot report which transactions it holds" in refused.stderr


def test_a_purge_that_would_ask_no_notify_database_is_refused() -> None:
    with pytest.raises(MisuseError, match="no Notify database"):
        held_by()
