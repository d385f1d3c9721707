from collections.abc import Iterator
from datetime import UTC, datetime

import bank
import pytest
from procrastinate.testing import InMemoryConnector
from receive import app
from retry import pay


@pytest.fixture(autouse=True)
def connector() -> Iterator[InMemoryConnector]:
    connector = InMemoryConnector()
    with app.replace_connector(connector):
        yield connector


@pytest.mark.parametrize(
    ("failure", "attempts", "delay_s"),
    [
        (PermissionError(), 0, None),
        (ConnectionError(), 5, 30),
        (ValueError(), 0, 1),
        (ValueError(), 1, 10),
        (ValueError(), 7, 60),
        (ValueError(), 8, None),
    ],
)
def test_a_failure_is_retried_or_given_up(
    failure: Exception, attempts: int, delay_s: int | None, connector: InMemoryConnector
) -> None:
    bank.failures[:] = [failure]
    job_id = pay.defer(order_id=7)
    connector.jobs[job_id]["attempts"] = attempts
    began = datetime.now(UTC)
    app.run_worker(wait=False)
    job = connector.jobs[job_id]
    if delay_s is None:
        assert job["status"] == "failed"
    else:
        assert job["status"] == "todo"
        assert 0 <= (job["scheduled_at"] - began).total_seconds() - delay_s < 1 or delay_s == 1


def test_an_order_is_charged() -> None:
    bank.charged.clear()
    pay.defer(order_id=7)
    app.run_worker(wait=False)
    assert bank.charged == [7]
