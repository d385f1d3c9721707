"""A member of a group in a process of its own, which notes when it begins and ends with each message."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

WORK_S = 0.001


def main(where: str, group: str, journal: str) -> None:
    """Handles topic t until it is told to stop."""
    from txmsg.message import ReceivedMessage
    from txmsg.metaq.consumer.consumer import LogConsumer

    fd = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    consumer = LogConsumer(where, group)

    @consumer.subscribe("t")
    def handle(message: ReceivedMessage) -> None:
        for what in ("begin", "end"):
            os.write(fd, f"{time.monotonic_ns()} {what} {message.queue} {message.offset}\n".encode())
            time.sleep(WORK_S)

    consumer.run()


class Note(NamedTuple):
    """A handler began or ended with a message, at a time that all processes share."""

    at_ns: int
    what: str
    queue: int
    offset: int
    member: int


@dataclass
class Member:
    """The process, as the test has it."""

    process: subprocess.Popen[bytes]
    journal: Path

    @classmethod
    def started(cls, where: Path | str, group: str, journal: Path) -> Self:
        command = [sys.executable, "-m", "tests.metaq.consumer_process", str(where), group, str(journal)]
        return cls(subprocess.Popen(command), journal)

    @property
    def pid(self) -> int:
        return self.process.pid

    def send(self, number: signal.Signals) -> None:
        """Sends it a signal."""
        self.process.send_signal(number)

    def notes(self) -> list[Note]:
        """What it has noted."""
        if not self.journal.exists():
            return []
        rows = (line.split() for line in self.journal.read_text().splitlines())
        return [Note(int(at), what, int(queue), int(offset), self.pid) for at, what, queue, offset in rows]

    def ended(self) -> int:
        """Waits for its end; its status."""
        return self.process.wait(60)


if __name__ == "__main__":
    main(*sys.argv[1:])
