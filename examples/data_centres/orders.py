"""Writes the orders of one data centre into its own log, independently of other data centres.

python -m examples.data_centres.orders LOG SITE [COUNT] [PER_S]
"""

from __future__ import annotations

import json
import sys
import time

from txmsg import Message
from txmsg.metaq import LogProducer, open_log

TOPIC = "order"
QUEUES = 2
TOGETHER = 20


def cents_of(number: int) -> int:
    """Return the price of an order: any amount, but always the same."""
    return number * 7919 % 10_000 + 1


def order(site: str, number: int) -> Message:
    content = {"site": site, "number": number, "cents": cents_of(number)}
    return Message(TOPIC, json.dumps(content).encode(), key=f"{site}-{number}")


def write(log_address: str, site: str, count: int, per_s: float) -> None:
    """Write orders; prints how many are on the disk of the log."""
    with open_log(log_address) as log:
        producer = LogProducer(log, queues=QUEUES)
        began_at = time.monotonic()
        for first in range(0, count, TOGETHER):
            time.sleep(max(0.0, began_at + first / per_s - time.monotonic()))
            numbers = range(first, min(first + TOGETHER, count))
            producer.send_many([order(site, number) for number in numbers])
            print(f"written {numbers.stop}", flush=True)


if __name__ == "__main__":
    where, of, *rest = sys.argv[1:]
    write(where, of, int(rest[0]) if rest else 1000, float(rest[1]) if rest[1:] else 100.0)
