"""What the programs of producers and consumers share: how they are told what to do, and how they end."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

READY = "ready"
QUIET = "quiet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What one process is told, as its only argument."""

    name: str
    """Of this life of it: `producer-0.2` was killed twice."""
    brokers: list[list[str]]
    """Of each Notify database."""
    business_url: str
    journal: str
    seed: int
    rate_per_s: float
    """Of producers: operations."""
    threads: bool = False
    """Of producers: whether threads call, or coroutines."""
    keeps: bool = False
    """Of producers: whether some calls have an outbox."""
    answers: bool = False
    """Of producers: whether it answers for transactions of RocketMQ's clients, too."""
    guests: bool = False
    """Of consumers: whether clients of RocketMQ are there."""
    step: str = ""
    """Of a service of the chain: which one it is."""
    gateway: str = ""
    """Of clients of RocketMQ: where they find it."""
    plant: str = ""

    def as_argument(self) -> str:
        return json.dumps(asdict(self))

    @property
    def journal_path(self) -> Path:
        return Path(self.journal)


def orders() -> Orders:
    """Those of this process. From now on it says what it logs, and ends with its parent."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    return Orders(**json.loads(sys.argv[1]))


def quiet_event() -> asyncio.Event:
    """Set when the parent says that nothing new is to be begun. The parent's end ends this process."""
    quiet = asyncio.Event()
    loop = asyncio.get_running_loop()
    obey_parent(lambda: loop.call_soon_threadsafe(quiet.set))
    print(READY, flush=True)
    return quiet


def quiet_flag() -> threading.Event:
    """The same for threads."""
    quiet = threading.Event()
    obey_parent(quiet.set)
    print(READY, flush=True)
    return quiet


def obey_parent(on_quiet: Callable[[], object] = lambda: None) -> None:
    """Calls this, on a thread, when the parent says so, and ends the process when the parent has gone."""

    def listen() -> None:
        while line := sys.stdin.readline():
            if line.strip() == QUIET:
                on_quiet()
        os._exit(3)

    threading.Thread(target=listen, name="parent", daemon=True).start()
