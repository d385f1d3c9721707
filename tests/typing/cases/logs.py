"""Consumers of logs as users write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import assert_type

from txmsg import ReceivedMessage, Start
from txmsg.metaq import (
    AsyncLogConsumer,
    LogAccess,
    LogConsumer,
    LogQueue,
    Member,
    PolledBatch,
    averaged,
    open_log,
)

consumer = LogConsumer("localhost:7720", "dashboard", concurrency=4, ordered=True)
LogConsumer(Path("/var/lib/metaq"), "dashboard", start=Start.latest(), missing="error")
LogConsumer(
    "DIR", "dashboard", start=Start.at(datetime.now(UTC)), broadcast="host-1", retry_delays_s=[1, 5], retries_max=2
)
LogConsumer("DIR", "dashboard", start="newest")  # error: mypy[arg-type] pyright[reportArgumentType]
LogConsumer("DIR", "dashboard", missing="ignore")  # error: mypy[arg-type] pyright[reportArgumentType]
LogConsumer(7720, "dashboard")  # error: mypy[arg-type] pyright[reportArgumentType]
LogConsumer("DIR", "dashboard", 16)  # error: mypy[call-arg] pyright[reportCallIssue]


@consumer.subscribe("trade", tag="created || paid")
def on_trade(message: ReceivedMessage) -> None:
    assert_type(message.body, bytes)


assert_type(on_trade(ReceivedMessage("trade", b"")), None)


@consumer.subscribe("trade")  # error: mypy[type-var] pyright[reportArgumentType]
def of_two(message: ReceivedMessage, other: int) -> None: ...


with consumer as running:
    assert_type(running, LogConsumer)
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
    async with AsyncLogConsumer("DIR", "dashboard") as each:
        each.subscribe("trade")
        assert_type(await each.poll(), list[PolledBatch])
        await each.commit()


def near_first(queues: Sequence[LogQueue], members: Sequence[Member]) -> Mapping[str, Sequence[LogQueue]]:
    return {members[0].id: queues}


LogConsumer("DIR", "dashboard", strategy=near_first)
LogConsumer("DIR", "dashboard", strategy=averaged)
LogConsumer("DIR", "dashboard", strategy="averaged")  # error: mypy[arg-type] pyright[reportArgumentType]

with open_log("DIR") as log:
    assert_type(log, LogAccess)
    assert_type(log.topics(), dict[str, list[int]])
LogConsumer(log, "dashboard")
