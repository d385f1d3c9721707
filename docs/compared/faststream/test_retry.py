import bank
import pytest
from faststream.rabbit import RabbitQueue, TestRabbitBroker
from receive import broker
from retry import given_up, later, payments

arrived: list[str] = []


def note(queue: RabbitQueue) -> None:
    @broker.subscriber(queue)
    def arrive(order_id: int) -> None:
        arrived.append(queue.name)


for each in (given_up, *later.values()):
    note(each)


@pytest.mark.parametrize(
    ("failure", "attempts", "expected"),
    [
        (PermissionError(), 0, "payments.dead"),
        (ConnectionError(), 5, "payments.30s"),
        (ValueError(), 0, "payments.1s"),
        (ValueError(), 1, "payments.10s"),
        (ValueError(), 7, "payments.60s"),
        (ValueError(), 8, "payments.dead"),
    ],
)
async def test_a_failure_goes_to_its_queue(failure: Exception, attempts: int, expected: str) -> None:
    arrived.clear()
    bank.failures[:] = [failure]
    async with TestRabbitBroker(broker):
        await broker.publish(7, payments, headers={"attempts": attempts})
    assert arrived == [expected]


async def test_an_order_is_charged() -> None:
    async with TestRabbitBroker(broker):
        await broker.publish(7, payments)
    assert bank.charged == [7]
