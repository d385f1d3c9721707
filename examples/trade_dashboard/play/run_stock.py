"""Runs the stock consumer, with what the load of these numbers needs, more or less, in stock.

    python -m examples.trade_dashboard.play.run_stock RATE SECONDS SEED

prints `consuming GROUP` when it begins.
"""

from __future__ import annotations

import logging
import sys

from examples.play.processes import exit_with_parent, say
from examples.trade_dashboard import stock
from examples.trade_dashboard.load import Load, initial_stock


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
