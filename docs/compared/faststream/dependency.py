from collections.abc import Iterator
from smtplib import SMTP
from typing import Annotated

from faststream import Depends
from faststream.rabbit import RabbitQueue
from receive import broker


def smtp() -> Iterator[SMTP]:
    with SMTP("localhost") as connection:
        yield connection


@broker.subscriber(RabbitQueue("thanks", durable=True))
def thank(order_id: int, connection: Annotated[SMTP, Depends(smtp)]) -> None:
    connection.sendmail("shop@example.com", "customer@example.com", f"Subject: order {order_id}")
