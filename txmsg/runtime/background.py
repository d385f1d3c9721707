"""Tasks that live on when the call that starts them has ended, or that work for several callers."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import Context
from typing import Any, TypeVar

T = TypeVar("T")


def in_background(work: Coroutine[Any, Any, T], *, name: str | None = None) -> asyncio.Task[T]:
    """Starts a task in an empty context.

    By default a task keeps the context of whoever makes it: the request id, the span and whatever else is set at the
    first use of an object would be those of all that it does later, and be kept as long.
    """
    return asyncio.create_task(work, name=name, context=Context())
