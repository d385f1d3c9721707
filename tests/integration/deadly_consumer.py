"""A consumer whose handler ends its process at some messages: a program for tests, which may also kill it.

    python -m tests.integration.deadly_consumer BROKERS KIND NOTES TAKES_S

KIND: `def` or `async`. NOTES: the file that tells what began and what ended. TAKES_S: how long a handler takes.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

from txmsg import Consumer, ReceivedMessage

DEADLY = b"deadly"


def main(brokers: str, kind: str, notes_file: str, takes_s: str) -> None:
    """Consume topic t in group g until killed."""
    consumer = Consumer(brokers, group="g", concurrency=16, visibility_timeout_s=2)
    notes = Path(notes_file).open("a", encoding="utf-8", buffering=1)  # noqa: SIM115 - as long as the process lives

    def begin(message: ReceivedMessage) -> None:
        notes.write(f"began {message.key} {os.getpid()}\n")
        if message.body == DEADLY:
            os.abort()

    def handle(message: ReceivedMessage) -> None:
        begin(message)
        time.sleep(float(takes_s))  # it works
        notes.write(f"ended {message.key} {os.getpid()}\n")

    async def handle_on_loop(message: ReceivedMessage) -> None:
        begin(message)
        await asyncio.sleep(float(takes_s))
        notes.write(f"ended {message.key} {os.getpid()}\n")

    if kind == "async":
        consumer.subscribe("t")(handle_on_loop)
    else:
        consumer.subscribe("t")(handle)
    consumer.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
