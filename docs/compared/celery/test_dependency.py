from dependency import thank
from receive import app


def test_a_customer_is_thanked(letters: list[str]) -> None:
    app.conf.task_always_eager = True
    thank.delay(42)
    assert letters == ["Subject: order 42"]
