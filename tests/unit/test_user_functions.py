"""What is kept of an exception that a user's function raised."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from txmsg.errors import MisuseError
from txmsg.runtime.user_function import UserFunction, check_takes, text_of


def deep(argument: object) -> None:
    raise LookupError(f"no stock for {argument}")  # the user's own line


def plain(argument: object) -> None:
    deep(argument)


async def coroutine(argument: object) -> None:
    await asyncio.sleep(0)
    deep(argument)


@pytest.mark.parametrize("function", [plain, coroutine])
async def test_the_text_of_an_exception_shows_the_users_frames_and_none_of_the_callers(
    function: Callable[[Any], Any],
) -> None:
    with ThreadPoolExecutor(1) as threads, pytest.raises(LookupError) as caught:
        await UserFunction("a handler", function, "message")("tea", threads)
    # As in a consumer: pytest's own frame, which is first here, is not there.
    text = text_of(caught.value.with_traceback(caught.tb.tb_next))
    first, *frames = text.splitlines()
    assert first == "LookupError: no stock for tea"
    files = [line.strip() for line in frames if line.strip().startswith("File ")]
    assert [line.rpartition(" in ")[2] for line in files] == [function.__name__, "deep"]
    assert "the user's own line" in text


def test_an_exception_that_txmsg_raised_itself_keeps_its_frames() -> None:
    with pytest.raises(MisuseError) as caught:
        check_takes("a handler", 5, "message")
    text = text_of(caught.value.with_traceback(caught.tb.tb_next))
    assert "in check_takes" in text
