"""A broker process: `python -m tests.chaos.broker ORDERS`. The product's own `serve`, with short times.

Its wall clock may be wrong, as far as Python's `time` tells it; and a planted defect may be in it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from unittest.mock import patch

from tests.chaos.client import READY, obey_parent
from tests.chaos.history import RETRIES_MAX
from tests.chaos.plant import planted
from txmsg.broker.config import BrokerConfig
from txmsg.broker.delivery import DeliveryConfig
from txmsg.broker.server import serve
from txmsg.runtime.backoff import Backoff
from txmsg.settings.live import GivenSettings

STORAGE_WAIT_S = 60.0
"""Seconds that a starting broker waits for its database."""
OUTCOME_MEMORY_S = 40.0
"""Longer than any copy of a request is in transit: so each message is in the log at most once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerOrders:
    """Arguments of a broker process."""

    broker_id: str
    storage: str
    listen: str
    advertise: str
    """Address that clients use: the broker's link."""
    clock_step_s: float = 0.0
    plant: str = ""

    def as_argument(self) -> str:
        return json.dumps(asdict(self))


def step_clock(step_s: float) -> None:
    """Step the wall clock by this every second minute: so it also steps while the broker runs."""
    real_ns: Callable[[], int] = time.time_ns

    def wrong_ns() -> int:
        now_ns = real_ns()
        return now_ns + int(step_s * 1e9) * (now_ns // 60_000_000_000 % 2)

    patch.object(time, "time_ns", wrong_ns).start()
    patch.object(time, "time", lambda: wrong_ns() / 1e9).start()


def config_of(told: BrokerOrders) -> BrokerConfig:
    return BrokerConfig(
        storage=told.storage,
        listen=told.listen,
        advertise=told.advertise,
        broker_id=told.broker_id,
        first_check_s=1.0,
        check_interval_s=2.0,
        checks_max=1000,
        check_timeout_s=1.5,
        delivery=DeliveryConfig(backoff=Backoff(delays_s=(0.2, 0.5, 1.0), retries_max=RETRIES_MAX)),
        outcome_memory_s=OUTCOME_MEMORY_S,
        segment_age_s=OUTCOME_MEMORY_S,
        segment_check_s=2.0,
        stop_timeout_s=3.0,
        storage_wait_s=STORAGE_WAIT_S,
    )


async def main() -> None:
    told = BrokerOrders(**json.loads(sys.argv[1]))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    logging.getLogger("psycopg").setLevel(logging.ERROR)
    obey_parent()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    step_clock(told.clock_step_s)
    with planted(told.plant):
        await serve(GivenSettings(config_of(told)), lambda address: print(READY, address, flush=True), stop)


if __name__ == "__main__":
    asyncio.run(main())
