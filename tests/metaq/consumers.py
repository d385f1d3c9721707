"""Consumers of logs for tests: what they were given, in which order, and waits that fail loudly."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from txmsg.message import ReceivedMessage
from txmsg.metaq.interface import LogAccess, LogQueue
from txmsg.metaq.location import open_log

WAIT_S = 60.0


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
        for message in self.messages:
            assert message.queue is not None
            assert message.offset is not None
            found[message.queue].append(message.offset)
        return dict(found)

    @property
    def attempts(self) -> list[tuple[int | None, int]]:
        """Offset and delivery, in the order in which they came."""
        return [(message.offset, message.attempt) for message in self.messages]


def stored(root: Path | LogAccess, group: str) -> dict[LogQueue, int | None]:
    """The offsets that a group has stored."""
    access = open_log(root) if isinstance(root, Path) else root
    return {queue.queue: queue.offset for queue in access.group(group).queues}
