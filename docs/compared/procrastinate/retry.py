from bank import charge
from procrastinate import BaseRetryStrategy, RetryDecision
from procrastinate.jobs import Job
from receive import app

DELAYS_S = (1, 10, 60)


class ByType(BaseRetryStrategy):
    def get_retry_decision(self, *, exception: BaseException, job: Job) -> RetryDecision | None:
        if isinstance(exception, PermissionError) or job.attempts >= 8:
            return None
        delay_s = 30 if isinstance(exception, ConnectionError) else DELAYS_S[min(job.attempts, 2)]
        return RetryDecision(retry_in={"seconds": delay_s})


# A job that is given up stays in the table, as failed.
@app.task(retry=ByType())
def pay(order_id: int) -> None:
    charge(order_id)
