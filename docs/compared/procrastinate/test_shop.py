from collections.abc import Iterator

import pytest
from procrastinate.testing import InMemoryConnector
from psycopg import connect
from psycopg.errors import UniqueViolation
from receive import app
from send import place


@pytest.fixture(autouse=True)
def in_memory() -> Iterator[None]:
    with connect() as connection:
        connection.execute("drop table if exists orders")
        connection.execute("create table orders (id integer primary key)")
    with app.replace_connector(InMemoryConnector()):
        yield


def test_an_order_is_mailed(capsys: pytest.CaptureFixture[str]) -> None:
    place(42)
    app.run_worker(wait=False)
    assert capsys.readouterr().out == "mail for order 42\n"


def test_an_order_that_is_rolled_back_is_not_mailed(capsys: pytest.CaptureFixture[str]) -> None:
    place(42)
    with pytest.raises(UniqueViolation):
        place(42)
    app.run_worker(wait=False)
    assert capsys.readouterr().out == "mail for order 42\n"
