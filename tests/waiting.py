"""Waiting for what gives no sign but can be looked at."""

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
    """What the look finds as soon as that is true; fails when it does not become so in time."""
    deadline = time.monotonic() + within_s
    while not (found := look()):
        assert time.monotonic() < deadline, why
        time.sleep(_LOOK_S)
    return found


async def until_async(look: Callable[[], _Found | None]) -> _Found:
    """As `until`, for tests on a loop."""
    async with asyncio.timeout(_WITHIN_S):
        while not (found := look()):  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(_LOOK_S)
    return found


def until_told(words: str, call: Callable[[], object]) -> TxmsgError:
    """The error of a call that fails each time, when it says these words.

    It is made again until then: on a busy machine its time may be over before it is told why it fails.
    """
    errors: list[TxmsgError] = []

    def is_told() -> bool:
        with pytest.raises(TxmsgError) as caught:
            call()
        errors.append(caught.value)
        return words in str(caught.value)

    until(is_told, why=f"no error said {words!r}")
    return errors[-1]
