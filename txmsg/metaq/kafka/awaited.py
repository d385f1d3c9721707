"""Waits for calls of Kafka's client: logs slow calls, and continues without a call that does not return.

librdkafka does not respect the timeout of `send_offsets_to_transaction`: if the group's coordinator is not found at
once, the call waits until any node appears or disappears (confluentinc/librdkafka#5456). A call in C cannot be
interrupted, so it runs in a separate thread, which is abandoned together with it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Final, TypeVar

from txmsg.runtime.logs import EventLog

_log = EventLog(__name__)
T = TypeVar("T")

TELL_S: Final = 10.0
"""Seconds between two log lines about a slow call."""


def awaited(call: Callable[[], T], doing: str, *, timeout_s: float, why: Callable[[], str] = str) -> T:
    """Return the result of a call, or raise its error.

    doing: names the call in the log; why: the known reason, or empty.

    Raises TimeoutError if the call has not returned within timeout_s. It may still take effect at any later time.
    """
    future: Future[T] = Future()

    def make() -> None:
        try:
            future.set_result(call())
        except BaseException as exc:  # noqa: BLE001 - it is the caller's
            future.set_exception(exc)

    # A daemon: a process must be able to end beside a call that does not.
    threading.Thread(target=make, name="txmsg-kafka-call", daemon=True).start()
    begun_at = time.monotonic()
    while not wait([future], timeout=max(0.0, min(TELL_S, begun_at + timeout_s - time.monotonic()))).done:
        waited_s = time.monotonic() - begun_at
        if waited_s >= timeout_s:
            raise TimeoutError(f"{doing} has not returned for {waited_s:.0f} s")
        _log.warning(
            "kafka.waiting",
            "%(doing)s: no answer for %(seconds).0f s; %(why)s",
            doing=doing,
            seconds=waited_s,
            why=why() or "Kafka's client gives no reason",
        )
    return future.result()
