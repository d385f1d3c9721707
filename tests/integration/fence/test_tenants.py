"""A schema per tenant: one table, and one schema of it for each session (`schema_translate_map`)."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine, create_engine, inspect, select, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from tests.broker_process import BrokerProcess
from tests.integration.client_harness import message_count
from tests.integration.fence.business import place_by_both_flows
from txmsg.checker.fence import AsyncFence, Fence, FenceCheckListener
from txmsg.checker.tables import create_tables, metadata, outbox_table
from txmsg.client import idempotent
from txmsg.client.outbox import rows
from txmsg.client.receiving.inbox import purge_inbox
from txmsg.errors import StorageError
from txmsg.message import ReceivedMessage, TransactionState, new_transaction_id

TABLES = {table.name for table in metadata.sorted_tables}


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)


@pytest.fixture
def shared(postgres_engine: Engine) -> Engine:
    """Tables of txmsg in the default schema, those of the application in `tenant`."""
    with postgres_engine.begin() as connection:
        connection.execute(text("create schema tenant"))
    Base.metadata.create_all(of_tenant(postgres_engine))
    return postgres_engine


def of_tenant(engine: Engine) -> Engine:
    return engine.execution_options(schema_translate_map={None: "tenant"})


def test_tables_are_created_in_the_schema_of_the_tenant(shared: Engine) -> None:
    for _ in range(2):
        create_tables(of_tenant(shared))
    assert set(inspect(shared).get_table_names(schema="tenant")) >= TABLES
    assert len(inspect(shared).get_indexes("txmsg_inbox", schema="tenant")) == 1


async def test_tables_are_created_in_the_schema_of_the_tenant_by_asyncio(shared: Engine) -> None:
    engine = create_async_engine(shared.url).execution_options(schema_translate_map={None: "tenant"})
    await create_tables(engine)
    fence, transaction_id = AsyncFence(engine), new_transaction_id()
    async with AsyncSession(engine) as session:
        await fence.write(session, transaction_id)
        await session.commit()
    assert await fence.check(transaction_id) is TransactionState.COMMIT
    assert Fence(of_tenant(shared)).check(transaction_id) is TransactionState.COMMIT
    await engine.dispose()


def test_a_fence_of_a_tenant_is_checked_in_its_schema(shared: Engine) -> None:
    with pytest.raises(StorageError, match="txmsg_fence_identity is absent"):
        Fence(of_tenant(shared)).fence_id()
    create_tables(of_tenant(shared))
    fence, transaction_id = Fence(of_tenant(shared)), new_transaction_id()
    with Session(of_tenant(shared)) as session:
        fence.write(session, transaction_id)
        session.commit()
    assert fence.check(transaction_id) is TransactionState.COMMIT
    assert Fence(shared).check(transaction_id) is TransactionState.ROLLBACK  # another fence
    assert fence.fence_id() != Fence(shared).fence_id()


def test_one_fence_serves_the_sessions_of_all_tenants(shared: Engine) -> None:
    """Its rows are in the schema of its own engine, also for checks by another process after a death."""
    fence, transaction_id = Fence(shared), new_transaction_id()
    with Session(of_tenant(shared)) as session:
        fence.write(session, transaction_id)
        assert fence._own_row(transaction_id)(session.connection())
        session.add(Order(id=1))
        session.commit()
    other_process = create_engine(shared.url)
    assert Fence(other_process).check(transaction_id) is TransactionState.COMMIT
    other_process.dispose()


def test_both_flows_and_the_inbox_serve_a_tenant(broker: BrokerProcess, shared: Engine, notify_url: str) -> None:
    listener, sessions = FenceCheckListener(shared), sessionmaker(of_tenant(shared))
    create_tables(of_tenant(shared))  # for the inbox, whose rows are beside the effects
    place_by_both_flows(broker.address, listener, sessions, lambda number: Order(id=number))
    handler = idempotent(sessions, group="g")(lambda session, message: session.add(Order(id=3)))
    for _ in range(2):
        handler(ReceivedMessage("t", b""))
    with sessions() as session:
        assert list(session.scalars(select(Order.id).order_by(Order.id))) == [1, 2, 3]
    assert message_count(notify_url) == 2
    assert purge_inbox(of_tenant(shared), 3600) == 0


def test_outbox_rows_are_written_to_the_schema_that_is_relayed(shared: Engine) -> None:
    fence = Fence(shared)
    with Session(of_tenant(shared)) as session:
        rows.write(session, "g", new_transaction_id(), None, "x", options=fence._row_options)
        session.commit()
    with shared.connect() as connection:
        assert list(connection.scalars(select(outbox_table.c.messages))) == ["x"]
