from procrastinate import App, JobContext, PsycopgConnector

app = App(connector=PsycopgConnector())


@app.task
def mail(order_id: int) -> None:
    print("mail for order", order_id)


# Without it, the job of a worker that was killed is not done again.
@app.periodic(cron="* * * * *")
@app.task(queueing_lock="retry_stalled_jobs", pass_context=True)
async def retry_stalled_jobs(context: JobContext, timestamp: int) -> None:
    for job in await app.job_manager.get_stalled_jobs():
        await app.job_manager.retry_job(job)
