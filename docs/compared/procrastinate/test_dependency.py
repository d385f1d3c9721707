from dependency import thank
from procrastinate.testing import InMemoryConnector
from receive import app


def test_a_customer_is_thanked(letters: list[str]) -> None:
    with app.replace_connector(InMemoryConnector()):
        thank.defer(order_id=42)
        app.run_worker(wait=False)
    assert letters == ["Subject: order 42"]
