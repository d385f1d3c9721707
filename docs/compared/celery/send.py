from receive import app, mail
from sqlalchemy import create_engine, select, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

engine = create_engine("sqlite:///shop.db")


class Base(DeclarativeBase):
    pass


class Outbox(Base):
    __tablename__ = "outbox"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int]


def place(order_id: int) -> None:
    with Session(engine) as session, session.begin():
        session.execute(text("insert into orders values (:id)"), {"id": order_id})
        session.add(Outbox(order_id=order_id))


@app.task(name="relay")
def relay() -> None:
    with Session(engine) as session, session.begin():
        oldest = select(Outbox).order_by(Outbox.id).limit(100).with_for_update(skip_locked=True)
        for row in session.scalars(oldest):
            mail.delay(row.order_id)
            session.delete(row)


# Without confirm_publish, a message that RabbitMQ did not take would be lost.
app.conf.update(
    broker_transport_options={"confirm_publish": True},
    beat_schedule={"relay": {"task": "relay", "schedule": 1.0}},
)
