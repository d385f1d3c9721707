"""Shared code of producer and consumer processes: their arguments, and how they end."""

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
    """Arguments of a client process."""

    name: str
    """Name of this life of the process: `producer-0.2` was killed twice."""
    brokers: list[list[str]]
    """Addresses by Notify database."""
    business_url: str
    journal: str
    seed: int
    rate_per_s: float
    """Operations per second of producers."""
    threads: bool = False
    """Producers: True if threads call, False for coroutines."""
    keeps: bool = False
    """Producers: True if some calls have an outbox."""
    answers: bool = False
    """Producers: True if it also answers check-backs of RocketMQ clients."""
    guests: bool = False
    """Consumers: True if RocketMQ clients take part."""
    step: str = ""
    """The step of a service of the chain."""
    gateway: str = ""
    """RocketMQ clients: address of the gateway."""
    plant: str = ""

    def as_argument(self) -> str:
        return json.dumps(asdict(self))

    @property
    def journal_path(self) -> Path:
        return Path(self.journal)


def orders() -> Orders:
    """Parse the arguments of this process. From now on it logs, and ends with its parent."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    return Orders(**json.loads(sys.argv[1]))


def quiet_event() -> asyncio.Event:
    """Return an event that is set when the parent asks to start nothing new. The process ends with its parent."""
    quiet = asyncio.Event()
    loop = asyncio.get_running_loop()
    obey_parent(lambda: loop.call_soon_threadsafe(quiet.set))
    print(READY, flush=True)
    return quiet


def quiet_flag() -> threading.Event:
    """Return the same for threads."""
    quiet = threading.Event()
    obey_parent(quiet.set)
    print(READY, flush=True)
    return quiet


def obey_parent(on_quiet: Callable[[], object] = lambda: None) -> None:
    """Call this on a thread when the parent asks to, and end the process when the parent has died."""

    def listen() -> None:
        while line := sys.stdin.readline():
            if line.strip() == QUIET:
                on_quiet()
        os._exit(3)

    threading.Thread(target=listen, name="parent", daemon=True).start()
