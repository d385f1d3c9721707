"""Runs in the documented project: a service that pays orders, and exits at a given step.

    python django_service.py STEP PLANT

STEP: one of STEPS; there it kills itself. PLANT: "none", or which write is in a transaction of its own, as a defect:
the "inbox" row, or the "effects".
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import django

if TYPE_CHECKING:
    from uuid import UUID

    from txmsg.message import TransactionId

STEPS: Final = ("before", "recorded", "half", "fence", "half2", "fence2", "inside", "committed", "told", "told2")
"""Before the inbox row; after it and the effects; after the half message, and after the fence row, of the first message
that is sent, and of the second one; at the end of the handler; after the commit; after the outcome of the first
message, and of the second one, before the acknowledgement."""
VISIBILITY_TIMEOUT_S: Final = 2

_step, _plant = sys.argv[1:] if len(sys.argv) == 3 else ("never", "none")


def at(step: str) -> None:
    if _step == step:
        os.kill(os.getpid(), signal.SIGKILL)


def each_at(*steps: str) -> Callable[..., None]:
    """Return a function whose consecutive calls reach these steps."""
    left = list(steps)
    return lambda *_: at(left.pop(0)) if left else None


def apart(function: Callable[..., Any], *args: Any) -> Any:
    """Run a function on a thread, whose connection has its own transaction, and return its result."""
    result: list[Any] = []
    thread = threading.Thread(target=lambda: result.append(function(*args)))
    thread.start()
    thread.join()
    return result[0]


def main() -> None:
    django.setup()
    from django.conf import settings
    from shop.models import Payment  # type: ignore[import-not-found]

    from txmsg import ReceivedMessage
    from txmsg.contrib.django import idempotent, producer, rows, send, subscribe, transactional_message
    from txmsg.contrib.django.subscriptions import _router, application

    settings.TXMSG["VISIBILITY_TIMEOUT_S"] = VISIBILITY_TIMEOUT_S

    @transactional_message(topic="order.thanked", key="number")
    def thank(number: int) -> None: ...

    has_ended: list[int] = []

    @subscribe("order.ordered", group="service", concurrency=1)
    @idempotent()
    def pay(number: int) -> None:
        if _plant == "effects":
            apart(lambda: Payment.objects.create(order_number=number))
        else:
            Payment.objects.create(order_number=number)
        at("recorded")
        send("order.paid", {"number": number}, key=number)
        thank(number=number)
        at("inside")
        has_ended.append(number)

    @_router.middleware
    @contextmanager
    def around(_: ReceivedMessage) -> Iterator[None]:
        at("before")
        yield
        if has_ended:  # else it is skipped
            at("told2")

    if _plant == "inbox":
        record = rows.record_message
        rows.record_message = lambda *args: apart(record, *args)
    hooks, write = producer().hooks, rows.write_fence
    hooks.after_half = each_at("half", "half2")
    hooks.before_end = each_at("committed", "told")
    at_fence = each_at("fence", "fence2")

    def write_fence(using: str, transaction_id: TransactionId, fence_id: UUID) -> None:
        write(using, transaction_id, fence_id)
        at_fence()

    rows.write_fence = write_fence
    application(["service"]).run()


if __name__ == "__main__":
    main()
