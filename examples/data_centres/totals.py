"""Adds up the orders of all data centres from logs in this one: its own, and copies of the others'.

python -m examples.data_centres.totals LOG COPY...
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from txmsg.metaq import LogAccess, LogQueue, open_log

from .orders import QUEUES, TOPIC

WAIT_S = 0.1


class Place:
    """A log that is read from its begin. Positions are kept in memory: groups of consumers are at leaders."""

    def __init__(self, log: LogAccess) -> None:
        self._log = log
        self._offsets = dict.fromkeys((LogQueue(TOPIC, number) for number in range(QUEUES)), 0)

    def orders(self) -> list[dict[str, Any]]:
        """Return new orders, each once, in order within a queue. Waits a moment for the first."""
        orders: list[dict[str, Any]] = []
        for found in self._log.fetch(self._offsets, wait_s=WAIT_S):
            if found.error is not None:
                raise found.error
            for batch in found.batches:
                orders += [message.json() for message in batch.messages()]
            self._offsets[found.queue] = found.batches[-1].end_offset
        return orders


def add_up(addresses: Sequence[str]) -> None:
    """Print number and sum of the orders by data centre whenever there are more."""
    totals: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
    with ExitStack() as opened:
        places = [Place(opened.enter_context(open_log(address))) for address in addresses]
        print("adding up", flush=True)
        while True:
            for place in places:
                if orders := place.orders():
                    for each in orders:
                        of_site = totals[each["site"]]
                        of_site[0] += 1
                        of_site[1] += each["cents"]
                    print(json.dumps(totals), flush=True)


if __name__ == "__main__":
    add_up(sys.argv[1:])
