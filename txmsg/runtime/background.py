"""Tasks that outlive the call that starts them, or work for several callers."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import Context
from typing import Any, TypeVar

T = TypeVar("T")


def in_background(work: Coroutine[Any, Any, T], *, name: str | None = None) -> asyncio.Task[T]:
    """Start a task in an empty context.

    By default a task keeps its creator's context: the request id and span of an object's first use would then belong
    to all its later work, and be kept as long.
    """
    return asyncio.create_task(work, name=name, context=Context())
