"""Shared code of programs with RocketMQ's official client for Python, which know txmsg by its gateway only."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from rocketmq.v5.client import ClientConfiguration, Credentials

_TIMEOUT_S = 3
_RESTART_S = 0.5

ClientT = TypeVar("ClientT", bound=Any)


def configuration(gateway: str) -> ClientConfiguration:
    """Return the configuration of a client of this gateway."""
    return ClientConfiguration(gateway, Credentials("", ""), request_timeout=_TIMEOUT_S)


def started(make: Callable[[], ClientT]) -> ClientT:
    """Start a client. Retries, as a supervisor does: its gateway may be down."""
    while True:
        client = make()
        try:
            client.startup()
        except Exception:  # noqa: BLE001 - it raises mere Exceptions, and logs what it was told
            time.sleep(_RESTART_S)
        else:
            return client


def in_threads(act: Callable[[int], object], count: int) -> list[threading.Thread]:
    """Run a function in so many threads, with the number of each. An error ends the process: its parent notices."""

    def run(number: int) -> None:
        try:
            act(number)
        except BaseException:
            logging.exception("thread %d failed", number)
            os._exit(1)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    return threads
