"""Runs a process of the lottery system. Prints `printing` when its tables are there; SIGTERM ends it in order."""

from __future__ import annotations

import logging

from txmsg.ops.demo.examples.lottery import printing
from txmsg.runtime.child import exit_with_parent, say

if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    exit_with_parent()
    printing.create_tables()
    say("printing")
    printing.consumer.run()
