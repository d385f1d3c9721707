"""The transactions that this process is running now.

A fence has no row of one that still waits for its connection, nor has a business table: only the process knows that it
is on its way. Of the whole process, since the broker may check back by any of its producers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

# No lock: adding and removing one element of a set are atomic, and each transaction does both itself.
_running: Final[set[bytes]] = set()
os.register_at_fork(after_in_child=_running.clear)  # they are the parent's


@contextmanager
def running(id_bytes: bytes) -> Iterator[None]:
    """Mark a local transaction, whose half messages are stored, as running in this process."""
    _running.add(id_bytes)
    try:
        yield
    finally:
        _running.discard(id_bytes)


def is_running(id_bytes: bytes) -> bool:
    """Return True if this process is running the transaction, so that it has no outcome yet."""
    return id_bytes in _running
