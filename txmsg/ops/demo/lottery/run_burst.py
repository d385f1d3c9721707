"""Runs the burst.

    python -m txmsg.ops.demo.lottery.run_burst USERS SECONDS ADDRESS...

prints `bursting`, then several times a second a JSON object: `accepted`, `refused`, `repeated`, and `recent`, what
those waited who were let in during the last second. The last one has `request_ms`, what all have waited.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from dataclasses import asdict
from typing import Any, Final

from txmsg.ops.demo.latency import latency_of
from txmsg.ops.demo.lottery.burst import Burst
from txmsg.runtime.child import exit_with_parent, say

READY: Final = "bursting"
TELL_S: Final = 0.2


async def main(burst: Burst) -> None:
    say(READY)
    async with asyncio.TaskGroup() as tasks:
        telling = tasks.create_task(_print_counts(burst))
        await burst.run()
        telling.cancel()
    say(json.dumps(_counts(burst) | {"request_ms": asdict(latency_of(burst.waits_ms))}))


async def _print_counts(burst: Burst) -> None:
    while True:
        say(json.dumps(_counts(burst)))
        await asyncio.sleep(TELL_S)


def _counts(burst: Burst) -> dict[str, Any]:
    recent = burst.recent()
    return {
        "accepted": burst.accepted,
        "refused": burst.refused,
        "repeated": burst.repeated,
        "recent": recent and asdict(recent),
    }


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    exit_with_parent()
    users, seconds, *addresses = sys.argv[1:]
    asyncio.run(main(Burst(addresses, int(users), float(seconds))))
