"""Wait for conditions that can only be polled."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

import pytest

from txmsg.errors import TxmsgError

_WITHIN_S = 120.0
_LOOK_S = 0.01
_Found = TypeVar("_Found")


def until(
    look: Callable[[], _Found | None], *, within_s: float = _WITHIN_S, why: str = "it did not happen in time"
) -> _Found:
    """Poll until the result is true and return it; fail after the time limit."""
    deadline = time.monotonic() + within_s
    while not (found := look()):
        assert time.monotonic() < deadline, why
        time.sleep(_LOOK_S)
    return found


async def until_async(look: Callable[[], _Found | None]) -> _Found:
    """Poll as `until` does, for tests on an event loop."""
    async with asyncio.timeout(_WITHIN_S):
        while not (found := look()):  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(_LOOK_S)
    return found


def until_told(words: str, call: Callable[[], object]) -> TxmsgError:
    """Repeat a failing call until its error contains these words, and return the error.

    On a busy machine the call may time out before it gets the reason.
    """
    errors: list[TxmsgError] = []

    def is_told() -> bool:
        with pytest.raises(TxmsgError) as caught:
            call()
        errors.append(caught.value)
        return words in str(caught.value)

    until(is_told, why=f"no error said {words!r}")
    return errors[-1]
