"""SQLModel, whose Session is a SQLAlchemy session, needs nothing special."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy.orm import sessionmaker
from sqlmodel import Field, Session, SQLModel, create_engine, select

from txmsg import Producer, create_tables, new_transaction_id, transactional_message
from txmsg.checker.fence import FenceCheckListener
from txmsg.client.fence import Fence
from txmsg.client.flows.flow import LocalTransaction
from txmsg.message import TransactionState


class Order(SQLModel, table=True):
    id: int | None = Field(default=None, primary_key=True)
    article: str


class Refused(Exception):
    pass


def test_models_and_fence_row_commit_together(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    SQLModel.metadata.create_all(engine)
    create_tables(engine)
    sessions = sessionmaker(engine, class_=Session)
    fence = Fence(engine)

    def place(session: Session, article: str) -> Order:
        order = Order(article=article)
        session.add(order)
        session.flush()
        if article == "nothing":
            raise Refused
        return order

    kept, undone = new_transaction_id(), new_transaction_id()
    placed = LocalTransaction(fence, kept, "place").run(sessions, lambda session: place(session, "a book"))
    assert (placed.id, placed.article) == (1, "a book")  # readable after the end of its session
    with pytest.raises(Refused):
        LocalTransaction(fence, undone, "place").run(sessions, lambda session: place(session, "nothing"))
    assert [fence.check(each) for each in (kept, undone)] == [TransactionState.COMMIT, TransactionState.ROLLBACK]
    with Session(engine) as session:
        assert [order.article for order in session.exec(select(Order))] == ["a book"]

    producer = Producer(group="shop", check_listener=FenceCheckListener(engine))
    decorated = transactional_message(producer, topic="order", session=sessions)(place)
    assert list(decorated.__signature__.parameters) == ["article"]  # type: ignore[attr-defined]
    engine.dispose()
