"""Runs the stock consumer, with what the load of these numbers needs, more or less, in stock.

    python -m examples.trade_dashboard.play.run_stock RATE SECONDS SEED

prints `consuming` when it begins.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys

from examples.play.processes import exit_with_parent, say
from examples.trade_dashboard import stock
from examples.trade_dashboard.load import Load, initial_stock


async def main(load: Load) -> None:
    ending = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ending.set)
    await stock.create_tables()
    await stock.take_in(initial_stock(load))
    async with stock.consumer:
        say(f"consuming {stock.consumer.group}")
        await ending.wait()
    await stock.engine.dispose()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    exit_with_parent()
    rate, seconds, seed = sys.argv[1:]
    asyncio.run(main(Load(rate=float(rate), seconds=float(seconds), seed=int(seed))))
