"""Consumers of logs as users write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import assert_type

from txmsg import ReceivedMessage, Start, Topic
from txmsg.metaq import (
    AsyncPullConsumer,
    LogAccess,
    LogQueue,
    Member,
    PolledBatch,
    PullConsumer,
    averaged,
    open_log,
)

consumer = PullConsumer("localhost:7720", "dashboard", zone="south")
PullConsumer(Path("/var/lib/metaq"), "dashboard", start=Start.latest(), missing="error")
PullConsumer("DIR", "dashboard", start=Start.at(datetime.now(UTC)), broadcast="host-1")
PullConsumer("DIR", "dashboard", concurrency=4)  # error: mypy[call-arg] pyright[reportCallIssue]
PullConsumer("DIR", "dashboard", start="newest")  # error: mypy[arg-type] pyright[reportArgumentType]
PullConsumer("DIR", "dashboard", missing="ignore")  # error: mypy[arg-type] pyright[reportArgumentType]
PullConsumer(7720, "dashboard")  # error: mypy[arg-type] pyright[reportArgumentType]
PullConsumer("DIR", "dashboard", None)  # error: mypy[call-arg] pyright[reportCallIssue]

consumer.subscribe("trade", tag="created || paid")
consumer.subscribe(Topic("order", str))
consumer.subscribe(3)  # error: mypy[arg-type] pyright[reportArgumentType]

with consumer as running:
    assert_type(running, PullConsumer)
    for batch in running.poll(1.0):
        assert_type(batch, PolledBatch)
        for message in batch.messages():
            assert_type(message, ReceivedMessage)
    running.commit()
    running.seek("trade", 0, Start.offset(17))
    running.seek("trade", 0, Start.earliest())
    running.seek("trade", 0, Start.at(datetime.now(UTC)))
    running.seek("trade", 0, "first")  # error: mypy[arg-type] pyright[reportArgumentType]
    running.pause("trade")
    running.resume("trade", 3)
    assert_type(running.queues(), list[tuple[str, int]])


async def poll_async() -> None:
    async with AsyncPullConsumer("DIR", "dashboard") as each:
        each.subscribe("trade")
        assert_type(await each.poll(), list[PolledBatch])
        await each.commit()


def near_first(queues: Sequence[LogQueue], members: Sequence[Member]) -> Mapping[str, Sequence[LogQueue]]:
    return {members[0].id: queues}


PullConsumer("DIR", "dashboard", strategy=near_first)
PullConsumer("DIR", "dashboard", strategy=averaged)
PullConsumer("DIR", "dashboard", strategy="averaged")  # error: mypy[arg-type] pyright[reportArgumentType]

with open_log("DIR") as log:
    assert_type(log, LogAccess)
    assert_type(log.topics(), dict[str, list[int]])
PullConsumer(log, "dashboard")
