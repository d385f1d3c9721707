"""A member of a group in its own process, which records begin and end of each message."""

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
    """Handle topic t until told to stop."""
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
    """The begin or end of a handler, at a time on a clock shared by all processes."""

    at_ns: int
    what: str
    queue: int
    offset: int
    member: int
    """Id of its process."""


class Member(Restartable):
    """The process, from the test's side."""

    module = "tests.metaq.consumer_process"

    def __init__(self, where: Path | str, group: str, journal: Path) -> None:
        super().__init__("a member", journal.with_suffix(".log"))
        self._arguments = [str(where), group, str(journal)]
        self._journal = journal

    def arguments(self) -> list[str]:
        return self._arguments

    def notes(self) -> list[Note]:
        """Return the notes written so far."""
        if not self._journal.exists():
            return []
        rows = (line.split() for line in self._journal.read_text().splitlines())
        return [Note(int(at), what, int(queue), int(offset), int(pid)) for at, what, queue, offset, pid in rows]


if __name__ == "__main__":
    main(*sys.argv[1:])
