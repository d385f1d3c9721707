from faststream import FastStream
from faststream.rabbit import RabbitBroker, RabbitQueue

broker = RabbitBroker("amqp://localhost")
app = FastStream(broker)
orders = RabbitQueue("order.placed", durable=True)


@broker.subscriber(orders)
def mail(order_id: int) -> None:
    print("mail for order", order_id)
