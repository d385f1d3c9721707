from bank import charge
from celery import Task
from receive import app

DELAYS_S = (1, 10, 60)

# The result backend keeps what was given up, with arguments and traceback, and no successes.
app.conf.update(result_backend="db+sqlite:///payments.db", result_extended=True, result_expires=None)
app.conf.update(task_ignore_result=True, task_store_errors_even_if_ignored=True)


@app.task(bind=True, acks_late=True, reject_on_worker_lost=True, max_retries=8)
def pay(self: Task, order_id: int) -> None:
    try:
        charge(order_id)
    except PermissionError:
        raise
    except ConnectionError as error:
        raise self.retry(exc=error, countdown=30) from error
    except Exception as error:
        raise self.retry(exc=error, countdown=DELAYS_S[min(self.request.retries, 2)]) from error
