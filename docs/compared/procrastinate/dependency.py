from collections.abc import Iterator
from contextlib import contextmanager
from smtplib import SMTP

from receive import app


@contextmanager
def smtp() -> Iterator[SMTP]:
    with SMTP("localhost") as connection:
        yield connection


@app.task
def thank(order_id: int) -> None:
    with smtp() as connection:
        connection.sendmail("shop@example.com", "customer@example.com", f"Subject: order {order_id}")
