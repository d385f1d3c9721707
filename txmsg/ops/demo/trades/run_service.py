"""Runs the trade service, with a load that uses it.

    python -m txmsg.ops.demo.trades.run_service RATE SECONDS SEED [BEGAN_AT]

prints `trading since BEGAN_AT` when it begins, then lines `made COUNT late SECONDS`, and goes on until it is told to
end: it answers check-backs. With BEGAN_AT it goes on with what a process that was killed had begun.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import time

from txmsg.ops.demo.examples.trade_dashboard import service
from txmsg.ops.demo.trades.load import Load
from txmsg.ops.demo.trades.trading import Trading
from txmsg.runtime.child import exit_with_parent, say

TELL_S = 0.2


async def main(load: Load, began_at: float | None) -> None:
    ending = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ending.set)
    async with service.producer:
        began_at = time.time() if began_at is None else began_at
        trading = Trading(load, began_at)
        say(f"trading since {began_at!r}")
        async with asyncio.TaskGroup() as tasks:
            work = [tasks.create_task(trading.run()), tasks.create_task(_print_counts(trading))]
            await ending.wait()
            for task in work:
                task.cancel()
    await service.engine.dispose()


async def _print_counts(trading: Trading) -> None:
    while True:
        say(f"made {trading.made} late {trading.late_s:.3f}")
        await asyncio.sleep(TELL_S)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    exit_with_parent()
    rate, seconds, seed, *began = sys.argv[1:]
    asyncio.run(
        main(Load(rate=float(rate), seconds=float(seconds), seed=int(seed)), float(began[0]) if began else None)
    )
