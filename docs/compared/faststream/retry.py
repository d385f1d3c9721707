from bank import charge
from faststream.rabbit import RabbitMessage, RabbitQueue
from receive import app, broker

DELAYS_S = (1, 10, 60)


def waiting(delay_s: int) -> RabbitQueue:
    back = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "payments"}
    return RabbitQueue(f"payments.{delay_s}s", durable=True, arguments={"x-message-ttl": delay_s * 1000, **back})


payments = RabbitQueue("payments", durable=True)
given_up = RabbitQueue("payments.dead", durable=True)
later = {delay_s: waiting(delay_s) for delay_s in (*DELAYS_S, 30)}


@app.after_startup
async def declare() -> None:
    for queue in (given_up, *later.values()):
        await broker.declare_queue(queue)


@broker.subscriber(payments)
async def pay(order_id: int, message: RabbitMessage) -> None:
    attempts = message.headers.get("attempts", 0)
    try:
        charge(order_id)
    except Exception as error:  # noqa: BLE001 - decided below
        if isinstance(error, PermissionError) or attempts >= 8:
            queue = given_up
        elif isinstance(error, ConnectionError):
            queue = later[30]
        else:
            queue = later[DELAYS_S[min(attempts, 2)]]
        headers = {"attempts": attempts + 1, "error": repr(error)}
        await broker.publish(order_id, queue, persist=True, headers=headers)
