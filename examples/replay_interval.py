"""Recomputes a past interval: the same topic as the live figures, read again as a batch.

A notebook as a script: run it whole, or cell by cell in an editor that knows `# %%`.

    python examples/replay_interval.py LOG TOPICS SINCE UNTIL
    python examples/replay_interval.py ./metaq 'trade.*' 2026-11-11T00:00:00+08:00 2026-11-11T00:05:00+08:00

LOG is a directory, HOST:PORT of `txmsg metaq serve`, or kafka://HOST:PORT.
"""

# %% Which interval
import sys
from datetime import datetime, timedelta

from pyspark.sql.functions import col, count, expr, window
from pyspark.sql.functions import sum as sum_of

from txmsg.spark import read_log, session

where, topics, *times = sys.argv[1:]
since, until = (datetime.fromisoformat(each).astimezone() for each in times)

# %% The messages of that time; those stored long before or after are not read
spark = session("replay", kafka=where.startswith("kafka://"))
margin = timedelta(minutes=10)  # more than the clocks of two database servers differ, when one takes over
messages = (
    read_log(
        spark,
        where,
        topics=topics,
        columns=("topic", "queue", "offset", "tag", "value", "stored_at"),
        startingTimestamp=int((since - margin).timestamp() * 1000),
        endingTimestamp=int((until + margin).timestamp() * 1000),
    )
    .where((col("stored_at") >= since) & (col("stored_at") < until))
    .cache()
)

# %% How many per minute, by topic and tag
size = expr("octet_length(value)")
minutes = messages.groupBy(window("stored_at", "1 minute").start.alias("minute"), "topic", "tag")
minutes.agg(count("*").alias("messages"), sum_of(size).alias("bytes")).orderBy("minute", "topic", "tag").show(
    100, False
)

# %% Where to look closer: the offsets that the interval has in each queue
spans = messages.groupBy("topic", "queue").agg(expr("min(offset)"), expr("max(offset)"), count("*").alias("messages"))
spans.orderBy("topic", "queue").show(100, False)
