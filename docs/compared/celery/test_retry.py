import bank
import pytest
from celery.exceptions import Retry
from receive import app
from retry import pay


@pytest.fixture(autouse=True)
def eager() -> None:
    app.conf.task_always_eager = True
    bank.charged.clear()


@pytest.mark.parametrize(("failure", "calls"), [(PermissionError(), 1), (ConnectionError(), 9), (ValueError(), 9)])
def test_an_order_is_given_up_by_type(failure: Exception, calls: int) -> None:
    bank.failures[:] = [failure] * 20
    assert pay.delay(7).failed()
    assert len(bank.failures) == 20 - calls


@pytest.mark.parametrize(
    ("failure", "retries", "delay_s"),
    [(ConnectionError(), 5, 30), (ValueError(), 0, 1), (ValueError(), 1, 10), (ValueError(), 7, 60)],
)
def test_a_failure_is_retried_after_its_delay(
    failure: Exception, retries: int, delay_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bank.failures[:] = [failure]
    pay.push_request(retries=retries)
    delays: list[int] = []
    monkeypatch.setattr(pay, "retry", lambda exc, countdown: delays.append(countdown) or Retry())
    with pytest.raises(Retry):
        pay.run(7)
    assert delays == [delay_s]
    pay.pop_request()


def test_an_order_is_charged() -> None:
    assert pay.delay(7).successful()
    assert bank.charged == [7]
