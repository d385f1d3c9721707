"""Start positions of a Spark stream in Kafka partitions, outside of the available range."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pytest

from txmsg.errors import OffsetOutOfRange
from txmsg.metaq.interface import LogQueue
from txmsg.spark.kafka.read import _begins

QUEUE = LogQueue("t", 0)


class Log:
    """A log that keeps the queue offsets 1000 to 1099 at the positions from `low` on."""

    def __init__(self, low: int) -> None:
        self._low = low

    def partition_offsets(self, wanted: Mapping[LogQueue, int]) -> dict[LogQueue, int | OffsetOutOfRange]:
        return {
            queue: self._low + offset - 1000 if 1000 <= offset <= 1100 else OffsetOutOfRange("not kept", 1000, 1100)
            for queue, offset in wanted.items()
        }

    def partition_begins(self, queues: Collection[LogQueue]) -> dict[LogQueue, int]:
        return dict.fromkeys(queues, self._low)


@pytest.mark.parametrize(
    ("low", "offset", "place"),
    [(0, 1050, 50), (0, 999, 0), (0, 0, 0), (10, 999, 9), (10, 500, 9), (2000, 999, 1999), (10, 1105, 115)],
)
def test_a_start_below_the_available_range_begins_before_it_so_that_spark_reports_the_loss(
    low: int, offset: int, place: int
) -> None:
    log: Any = Log(low)
    assert _begins(log, {QUEUE: offset}) == {QUEUE: place}
