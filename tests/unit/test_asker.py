"""Check listeners: there is an answer whatever they do, and the next check is made."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from txmsg.client.asker import Asker
from txmsg.message import ReceivedMessage, TransactionState, new_transaction_id

COMMIT, UNKNOWN = TransactionState.COMMIT, TransactionState.UNKNOWN
WAIT_S = 30.0


def a_check() -> ReceivedMessage:
    transaction_id = new_transaction_id()
    return ReceivedMessage("t", b"x", id_bytes=transaction_id.bytes)


class Listener:
    """A listener that answers with the given function."""

    def __init__(self, answer: Callable[[], Any]) -> None:
        self._answer = answer

    def check(self, message: ReceivedMessage) -> Any:
        return self._answer()


class AsyncListener(Listener):
    async def check(self, message: ReceivedMessage) -> Any:
        answer = self._answer()
        return await answer if isinstance(answer, Awaitable) else answer


def raising(error: BaseException) -> Callable[[], Any]:
    def answer() -> Any:
        raise error

    return answer


MISBEHAVING: dict[str, tuple[Callable[[], Any], str]] = {
    "raises": (raising(KeyError("row")), "the listener raised"),
    "raises TimeoutError": (raising(TimeoutError("its database")), "the listener raised"),
    "exits": (lambda: sys.exit(3), "the listener raised"),
    "returns None": (lambda: None, "the listener returned None"),
    "returns a word": (lambda: "COMMIT", "the listener returned 'COMMIT'"),
    "returns True": (lambda: True, "the listener returned True"),
    "returns much": (lambda: "x" * 1_000_000, "the listener returned 'xxx"),
}


@pytest.mark.parametrize("kind", [Listener, AsyncListener])
@pytest.mark.parametrize(("answer", "words"), MISBEHAVING.values(), ids=MISBEHAVING)
async def test_an_invalid_check_result_counts_as_unknown_and_is_logged(
    answer: Callable[[], Any], words: str, kind: type[Listener], caplog: pytest.LogCaptureFixture
) -> None:
    question = a_check()

    asker = Asker(kind(answer), threads=1)
    assert await asker.ask_listener(question) is UNKNOWN
    asker.close()
    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert f"check of transaction {question.transaction_id}: {words}" in record.getMessage()
    assert len(record.getMessage()) < 400


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (Listener, StopIteration()),
        (Listener, KeyboardInterrupt()),
        (Listener, asyncio.CancelledError()),
        (AsyncListener, asyncio.CancelledError()),
    ],
)
async def test_a_listener_that_raises_cancelled_or_exit_does_not_stop_the_asker(
    kind: type[Listener], error: BaseException
) -> None:
    asker = Asker(kind(raising(error)), threads=1)
    assert await asker.ask_listener(a_check()) is UNKNOWN
    assert await asker.ask_listener(a_check()) is UNKNOWN
    asker.close()


async def test_a_hanging_check_is_unknown_and_blocks_only_its_own_thread(
    caplog: pytest.LogCaptureFixture,
) -> None:
    go_on, hung = threading.Event(), a_check()

    class Hanging:
        asked = 0

        def check(self, message: ReceivedMessage) -> TransactionState:
            if message is hung:
                self.asked += 1
                go_on.wait(WAIT_S)
            return COMMIT

    try:
        listener = Hanging()
        asker = Asker(listener, threads=2, timeout_s=0.05)
        while not listener.asked:  # on a busy machine the timeout may pass before the thread has begun
            assert await asker.ask_listener(hung) is UNKNOWN
        assert [await asker.ask_listener(hung) for _ in range(5)] == [UNKNOWN] * 5
        assert listener.asked == 1
        patient = Asker(listener, threads=1, timeout_s=WAIT_S)
        assert await patient.ask_listener(a_check()) is COMMIT
        patient.close()
        go_on.set()
        while await asker.ask_listener(hung) is not COMMIT:  # noqa: ASYNC110 - a thread ends by itself
            await asyncio.sleep(0.01)
        asker.close()
    finally:
        go_on.set()
    said = [record.getMessage() for record in caplog.records]
    no_answer = f"check of transaction {hung.transaction_id}: the listener gave no answer within 0.05 s: UNKNOWN"
    assert any(no_answer in text and "hold 1 of 2 threads" in text for text in said)
    assert sum("the listener still hangs in an earlier one: UNKNOWN" in text for text in said) >= 5


async def test_a_hanging_check_coroutine_is_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    ended = []

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    asker = Asker(AsyncListener(forever), threads=1, timeout_s=0.05)
    assert await asker.ask_listener(a_check()) is UNKNOWN
    asker.close()
    assert ended == [True]
    assert "no answer within 0.05 s: UNKNOWN; calls that hang hold 0 of 1 threads" in caplog.text


async def test_a_check_cancelled_from_outside_stays_cancelled() -> None:
    began = asyncio.Event()

    async def forever() -> None:
        began.set()
        await asyncio.Event().wait()

    asker = Asker(AsyncListener(forever), threads=1)
    asking = asyncio.create_task(asker.ask_listener(a_check()))
    await began.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    asker.close()
