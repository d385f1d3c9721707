"""Runs the stock consumer, with what the load of these numbers needs, more or less, in stock.

    python -m txmsg.ops.demo.trades.run_stock RATE SECONDS SEED

prints `consuming GROUP` when it begins.
"""

from __future__ import annotations

import logging
import sys

from txmsg.ops.demo.examples.trade_dashboard import stock
from txmsg.ops.demo.trades.load import Load, initial_stock
from txmsg.runtime.child import exit_with_parent, say


def main(load: Load) -> None:
    stock.create_tables()
    stock.take_in(initial_stock(load))
    say(f"consuming {stock.consumer.group}")
    stock.consumer.run()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    exit_with_parent()
    rate, seconds, seed = sys.argv[1:]
    main(Load(rate=float(rate), seconds=float(seconds), seed=int(seed)))
