import pytest
from receive import app
from send import Base, engine, place, relay
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError


@pytest.fixture(autouse=True)
def tables() -> None:
    app.conf.task_always_eager = True
    with engine.begin() as connection:
        connection.execute(text("drop table if exists orders"))
        connection.execute(text("create table orders (id integer primary key)"))
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)


def test_an_order_is_mailed(capsys: pytest.CaptureFixture[str]) -> None:
    place(42)
    relay()
    assert capsys.readouterr().out == "mail for order 42\n"


def test_an_order_that_is_rolled_back_is_not_mailed(capsys: pytest.CaptureFixture[str]) -> None:
    place(42)
    with pytest.raises(IntegrityError):
        place(42)
    relay()
    assert capsys.readouterr().out == "mail for order 42\n"
