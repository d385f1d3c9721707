"""Consumers of logs for tests: what they were given, in which order, and waits that fail loudly."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

from txmsg.message import ReceivedMessage
from txmsg.metaq.access import LogAccess, QueueId
from txmsg.metaq.location import open_log

WAIT_S = 60.0


P = ParamSpec("P")


def on_loop(case: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """A test that runs on a loop of its own."""

    @wraps(case)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(case(*args, **kwargs))

    return run


class Seen:
    """A handler that notes what it is given, and fails as it is told."""

    def __init__(self, fails: Callable[[ReceivedMessage], bool] = lambda _: False) -> None:
        self.messages: list[ReceivedMessage] = []
        self._fails = fails

    def __call__(self, message: ReceivedMessage) -> None:
        self.messages.append(message)
        if self._fails(message):
            raise ValueError(f"no {message.body.decode()}, try {message.attempt}")

    @property
    def offsets(self) -> dict[int, list[int]]:
        """By queue, in the order in which they came."""
        found: dict[int, list[int]] = defaultdict(list)
        for each in self.messages:
            assert each.queue is not None
            assert each.offset is not None
            found[each.queue].append(each.offset)
        return dict(found)

    @property
    def attempts(self) -> list[tuple[int | None, int]]:
        """Offset and delivery, in the order in which they came."""
        return [(each.offset, each.attempt) for each in self.messages]


async def until(holds: Callable[[], object]) -> None:
    """Returns when this holds; fails when it never does."""
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline, "what was waited for did not come"
        await asyncio.sleep(0.005)


def stored(root: Path | LogAccess, group: str) -> dict[QueueId, int | None]:
    """The offsets that a group has stored."""
    access = open_log(root) if isinstance(root, Path) else root
    return {each.queue: each.offset for each in access.group(group).queues}
