"""Consumers of logs for tests: their deliveries in order, and waits that fail loudly."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from txmsg.message import ReceivedMessage
from txmsg.metaq.interface import LogAccess, LogQueue
from txmsg.metaq.location import open_log

WAIT_S = 60.0


class Seen:
    """A handler that records its deliveries, and fails as configured."""

    def __init__(self, fails: Callable[[ReceivedMessage], bool] = lambda _: False) -> None:
        self.messages: list[ReceivedMessage] = []
        self._fails = fails

    def __call__(self, message: ReceivedMessage) -> None:
        self.messages.append(message)
        if self._fails(message):
            raise ValueError(f"no {message.body.decode()}, try {message.attempt}")

    @property
    def offsets(self) -> dict[int, list[int]]:
        """Return the offsets by queue, in order of delivery."""
        found: dict[int, list[int]] = defaultdict(list)
        for message in self.messages:
            assert message.queue is not None
            assert message.offset is not None
            found[message.queue].append(message.offset)
        return dict(found)

    @property
    def attempts(self) -> list[tuple[int | None, int]]:
        """Return offset and attempt, in order of delivery."""
        return [(message.offset, message.attempt) for message in self.messages]


def stored(root: Path | LogAccess, group: str) -> dict[LogQueue, int | None]:
    """Return the stored offsets of a group."""
    access = open_log(root) if isinstance(root, Path) else root
    return {queue.queue: queue.offset for queue in access.group(group).queues}
