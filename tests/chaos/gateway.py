"""A gateway process: `python -m tests.chaos.gateway ORDERS`. The product's own `serve`, with short times."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from unittest.mock import patch

from tests.chaos.client import READY, obey_parent
from tests.chaos.history import HELD_BY_GUESTS_S
from tests.chaos.plant import planted
from txmsg.rocketmq import api, receivers
from txmsg.rocketmq.config import GatewayConfig
from txmsg.rocketmq.server import serve
from txmsg.settings.live import GivenSettings

SILENT_S = 15.0
"""Seconds without calls of a push consumer until its messages are no longer renewed: it calls at least every 10 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOrders:
    """Arguments of a gateway process."""

    brokers: list[str]
    listen: str
    plant: str = ""

    def as_argument(self) -> str:
        return json.dumps(asdict(self))


async def main() -> None:
    told = GatewayOrders(**json.loads(sys.argv[1]))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    obey_parent()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    with ExitStack() as stack:
        stack.enter_context(patch.object(api, "RENEWED_S", HELD_BY_GUESTS_S))
        stack.enter_context(patch.object(receivers, "RENEWED_S", HELD_BY_GUESTS_S))
        stack.enter_context(patch.object(receivers, "SILENT_S", SILENT_S))
        stack.enter_context(planted(told.plant))
        config = GatewayConfig(broker=",".join(told.brokers), listen=told.listen)
        await serve(GivenSettings(config), lambda address: print(READY, address, flush=True), stop)


if __name__ == "__main__":
    asyncio.run(main())
