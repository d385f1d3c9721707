from celery import Celery

app = Celery("shop", broker="amqp://localhost")


@app.task(acks_late=True, reject_on_worker_lost=True)
def mail(order_id: int) -> None:
    print("mail for order", order_id)
