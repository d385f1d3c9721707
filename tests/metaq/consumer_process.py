"""A member of a group in a process of its own, which notes when it begins and ends with each message."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import NamedTuple

from tests.restartable import Restartable
from txmsg.message import ReceivedMessage

WORK_S = 0.001


def main(where: str, group: str, journal: str) -> None:
    """Handles topic t until it is told to stop."""
    from txmsg.client.app import Txmsg

    fd = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    app = Txmsg(log=where, group=group)

    @app.subscribe("t", source="log")
    def handle(message: ReceivedMessage) -> None:
        for what in ("begin", "end"):
            os.write(fd, f"{time.monotonic_ns()} {what} {message.queue} {message.offset} {os.getpid()}\n".encode())
            time.sleep(WORK_S)

    app.run()


class Note(NamedTuple):
    """A handler began or ended with a message, at a time that all processes share."""

    at_ns: int
    what: str
    queue: int
    offset: int
    member: int
    """Its process."""


class Member(Restartable):
    """The process, as the test has it."""

    module = "tests.metaq.consumer_process"

    def __init__(self, where: Path | str, group: str, journal: Path) -> None:
        super().__init__("a member", journal.with_suffix(".log"))
        self._arguments = [str(where), group, str(journal)]
        self._journal = journal

    def arguments(self) -> list[str]:
        return self._arguments

    def notes(self) -> list[Note]:
        """What it has noted."""
        if not self._journal.exists():
            return []
        rows = (line.split() for line in self._journal.read_text().splitlines())
        return [Note(int(at), what, int(queue), int(offset), int(pid)) for at, what, queue, offset, pid in rows]


if __name__ == "__main__":
    main(*sys.argv[1:])
