"""The transactions that this process is running now.

A fence has no row of one that still waits for its connection, nor has a business table: only the process knows that it
is on its way. Of the whole process, since the broker may check back by any of its producers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_running: Final[set[bytes]] = set()
os.register_at_fork(after_in_child=_running.clear)  # they are the parent's


@contextmanager
def running(id_bytes: bytes) -> Iterator[None]:
    """For the time of a local transaction, whose half messages are stored."""
    _running.add(id_bytes)
    try:
        yield
    finally:
        _running.discard(id_bytes)


def is_running(id_bytes: bytes) -> bool:
    """Whether this process is running it. If so, there is no outcome."""
    return id_bytes in _running
