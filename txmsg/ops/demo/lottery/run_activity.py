"""Runs the activity page.

    python -m txmsg.ops.demo.lottery.run_activity HOST:PORT

prints `listening on HOST:PORT` when it answers. SIGTERM ends it in order.
"""

from __future__ import annotations

import asyncio
import logging
import sys

from txmsg.ops.demo.examples.lottery import activity
from txmsg.ops.page.listening import PageServer, listening
from txmsg.runtime.child import LISTENING, exit_with_parent, say
from txmsg.runtime.signals import stop_on_signals


async def main(listen: str) -> None:
    stop = stop_on_signals()
    with listening(listen) as (listener, address):
        async with activity.lifespan(activity.app):
            server = PageServer(activity.app)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(server.serve(sockets=[listener]))
                say(f"{LISTENING}{address}")
                await stop.wait()
                server.should_exit = True


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    exit_with_parent()
    asyncio.run(main(sys.argv[1]))
