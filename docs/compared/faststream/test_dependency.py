import dependency  # noqa: F401 - subscribes
from faststream.rabbit import TestRabbitBroker
from receive import broker


async def test_a_customer_is_thanked(letters: list[str]) -> None:
    async with TestRabbitBroker(broker):
        await broker.publish(42, "thanks")
    assert letters == ["Subject: order 42"]
