"""The burst: who comes when, and a client that has all of them enter, however often it has to try. Knows no process.

An asyncio client of our own on bare sockets, since what measures a service must cost less than the service: general
load generators, such as locust, take more of the machine for a request than the activity page does.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import cycle
from typing import Final

from txmsg.ops.demo.latency import Latency, latency_of
from txmsg.wire.address import host_and_port

CALLERS: Final = 128
"""Connections. Who comes while all are in use waits for one, and that counts as waiting for the answer."""
TRY_S_MAX: Final = 30.0
AGAIN_S: Final = 0.2
CARELESS: Final = 20
"""One in so many users forgets to accept the rules, is refused, and enters then."""
_DECAY: Final = 2.0
"""Ratio of arrivals at the beginning to those at the end: e to the power of this."""
_RECENT_S: Final = 1.0

_ENTERED: Final = (200, 201)
_REFUSED: Final = 422
_AGAIN: Final = (503, None)


def arrivals(users: int, seconds: float) -> Iterator[float]:
    """Yield when each user comes, in seconds from the beginning: most of them at once, as at midnight."""
    for number in range(users):
        yield -seconds / _DECAY * math.log(1 - number / users * (1 - math.exp(-_DECAY)))


@dataclass(slots=True)
class Burst:
    """Has users 1 to `users` enter at any of `addresses`, each until it is let in."""

    addresses: Sequence[str]
    users: int
    seconds: float
    accepted: int = 0
    refused: int = 0
    """Users who had not accepted the rules at first."""
    repeated: int = 0
    """Tries after which nothing was known: no connection, no answer, or 503."""
    waits_ms: list[float] = field(default_factory=list)
    """From the moment when a user came until it was let in, with all tries and pauses between them."""
    _recent: deque[tuple[float, float]] = field(default_factory=deque)

    async def run(self) -> None:
        """Returns when all are in."""
        due: asyncio.Queue[tuple[int, float] | None] = asyncio.Queue()
        async with asyncio.TaskGroup() as tasks:
            for place in range(CALLERS):
                tasks.create_task(self._serve(due, place))
            began = time.monotonic()
            for number, comes_after_s in enumerate(arrivals(self.users, self.seconds), start=1):
                if (left_s := began + comes_after_s - time.monotonic()) > 0:
                    await asyncio.sleep(left_s)
                due.put_nowait((number, began + comes_after_s))
            for _ in range(CALLERS):
                due.put_nowait(None)

    def recent(self) -> Latency | None:
        """Of those who were let in during the last second; None: nobody was."""
        while self._recent and self._recent[0][0] < time.monotonic() - _RECENT_S:
            self._recent.popleft()
        return latency_of(wait_ms for _, wait_ms in self._recent) if self._recent else None

    async def _serve(self, due: asyncio.Queue[tuple[int, float] | None], place: int) -> None:
        """Has one user after the other enter."""
        with closing(LotteryCaller(self.addresses, place)) as caller:
            while (user := await due.get()) is not None:
                number, came_at = user
                await self._enter(caller, number)
                now = time.monotonic()
                self.accepted += 1
                self.waits_ms.append((now - came_at) * 1000)
                self._recent.append((now, self.waits_ms[-1]))

    async def _enter(self, caller: LotteryCaller, number: int) -> None:
        """Tries until the user is in: whether that gets anywhere, and when to give up, who started the burst sees."""
        accepts_rules = number % CARELESS != 0
        while (status := await caller.enter(number, accepts_rules)) not in _ENTERED:
            if status == _REFUSED and not accepts_rules:
                self.refused += 1
                accepts_rules = True
            elif status in _AGAIN:
                self.repeated += 1
                await asyncio.sleep(AGAIN_S * random.uniform(0.5, 1.5))
            else:
                raise RuntimeError(f"the activity page answered {status} to user {number}")


class LotteryCaller:
    """A browser: one connection of HTTP/1.1 that is kept, to the next address when it breaks."""

    def __init__(self, addresses: Sequence[str], place: int) -> None:
        first = place % len(addresses)
        self._addresses = cycle([*addresses[first:], *addresses[:first]])
        self._connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def enter(self, user: int, accepts_rules: bool) -> int | None:
        """The status of the answer; None: there was none, and whether the user is in is not known."""
        try:
            async with asyncio.timeout(TRY_S_MAX):
                return await self._post({"user_id": user, "accepts_rules": accepts_rules})
        except (OSError, EOFError):  # TimeoutError is an OSError
            self.close()
            return None

    async def _post(self, values: Mapping[str, object]) -> int:
        if self._connection is None:
            self._connection = await asyncio.open_connection(*host_and_port(next(self._addresses)))
        reader, writer = self._connection
        body = json.dumps(values).encode()
        head = (
            f"POST /enter HTTP/1.1\r\nHost: activity\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        )
        writer.write(head.encode() + b"\r\n\r\n" + body)
        answer = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        length = answer.partition("content-length:")[2].partition("\r\n")[0]
        await reader.readexactly(int(length))
        return int(answer.split(" ", 2)[1])

    def close(self) -> None:
        if self._connection is not None:
            self._connection[1].close()
            self._connection = None
