"""The stored text of an exception of a user function."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, func, select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from txmsg.checker.tables import create_tables, inbox_table
from txmsg.client import idempotent
from txmsg.consumer.subscriptions import Subscriptions
from txmsg.errors import MisuseError
from txmsg.message import ReceivedMessage
from txmsg.message.encryption import AesGcm
from txmsg.runtime import reason
from txmsg.runtime.reason import text_of, without_words
from txmsg.runtime.user_function import UserFunction, check_takes


def deep(argument: object) -> None:
    raise LookupError(f"no stock for {argument}")  # the user's own line


def plain(argument: object) -> None:
    deep(argument)


async def coroutine(argument: object) -> None:
    await asyncio.sleep(0)
    deep(argument)


@pytest.mark.parametrize("function", [plain, coroutine])
async def test_the_text_of_an_exception_shows_only_frames_of_the_user(
    function: Callable[[Any], Any],
) -> None:
    with ThreadPoolExecutor(1) as threads, pytest.raises(LookupError) as caught:
        await UserFunction("a handler", function, "message")("tea", threads)
    # A consumer has no frame of pytest, which is the first here.
    text = text_of(caught.value.with_traceback(caught.tb.tb_next))
    first, *frames = text.splitlines()
    assert first == "LookupError: no stock for tea"
    assert [line.split(",")[0].strip() for line in frames] == ["at deep", f"called by {function.__name__}"]
    assert frames[0].endswith("# the user's own line")


class Handler:
    """An object with an async call, such as that of `idempotent`."""

    async def __call__(self, argument: object) -> None:
        pass


@pytest.mark.parametrize("convert", [None, str.upper])
def test_an_object_with_an_async_call_runs_on_the_event_loop(convert: Callable[[Any], Any] | None) -> None:
    assert UserFunction("a handler", Handler(), "message", convert=convert).is_coroutine


def test_a_library_takes_one_line_after_the_frames_of_the_user() -> None:
    text = text_of(raised(lambda: json.loads("{")))
    _, at, raised_in = text.splitlines()[:3]
    assert at.startswith("  at <lambda>, ")
    assert "json.loads" in at
    assert raised_in.startswith("  raised in raw_decode, ") or raised_in.startswith("  raised in decode, ")


def test_a_long_error_text_does_not_displace_the_line_of_the_user() -> None:
    def handle() -> None:
        raise ValueError("x" * 5000 + "\nand more")

    text = text_of(raised(handle))
    assert "  at handle, " in text[:300]
    assert text.endswith("x\nand more")


def test_an_application_installed_as_a_package_has_its_own_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reason, "_LIBRARIES", (str(Path(__file__).parent),))
    assert "  at deep, " in text_of(raised(lambda: deep("tea")))


def test_an_exception_translated_by_txmsg_shows_its_cause() -> None:
    def handle(_: object) -> None:
        raise SystemExit("bye")

    function = UserFunction("a handler", handle, "message")
    with asyncio.Runner() as runner:
        text = text_of(raised(partial(function.on_thread, "tea", runner.get_loop())))
    assert "  at handle, " in text
    assert "  caused by SystemExit: bye" in text


def test_an_exception_raised_by_txmsg_shows_its_location() -> None:
    with pytest.raises(MisuseError) as caught:
        check_takes("a handler", 5, "message")
    text = text_of(caught.value.with_traceback(caught.tb.tb_next))
    assert "raised in check_takes" in text


def raised(call: Callable[[], object]) -> Exception:
    """Return the exception that it raises, without the frame of this function."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - it is the test's own
        call()
    return caught.value.with_traceback(caught.tb.tb_next)


async def later(message: ReceivedMessage) -> None:
    raise AssertionError("nobody awaits this")


def one_by_one(message: ReceivedMessage) -> Iterator[int]:
    yield 1


LAZY: dict[str, Callable[[Session, ReceivedMessage], Any]] = {
    "coroutine": lambda session, message: later(message),
    "generator": lambda session, message: one_by_one(message),
    "map": lambda session, message: map(print, [message]),
    "filter": lambda session, message: filter(print, [message]),
    "starmap": lambda session, message: itertools.starmap(print, [(message,)]),
}


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{tmp_path / 'business.db'}")
    create_tables(engine)
    yield engine
    engine.dispose()


def handled_count(engine: Engine) -> int:
    with engine.connect() as connection:
        return connection.execute(select(func.count()).select_from(inbox_table)).scalar_one()


@pytest.mark.parametrize("kind", LAZY)
def test_a_message_whose_handler_returned_unfinished_work_is_not_handled(kind: str, engine: Engine) -> None:
    handler = idempotent(sessionmaker(engine), group="g")(LAZY[kind])
    with pytest.raises(MisuseError, match=f"returned a {kind}"):
        handler(ReceivedMessage("t", b""))
    assert handled_count(engine) == 0


class EffectsLater:
    """An object with an async call that returns another coroutine."""

    def __init__(self) -> None:
        self.is_done = False

    async def __call__(self, session: AsyncSession, message: ReceivedMessage) -> Any:
        async def work() -> None:
            assert session.in_transaction()
            self.is_done = True

        return work()


async def test_an_awaitable_returned_by_a_coroutine_runs_in_its_transaction(engine: Engine) -> None:
    async_engine = create_async_engine(engine.url.set(drivername="sqlite+aiosqlite"))
    effects = EffectsLater()
    await idempotent(async_sessionmaker(async_engine), group="g")(effects)(ReceivedMessage("t", b""))
    await async_engine.dispose()
    assert effects.is_done
    assert handled_count(engine) == 1


def test_without_the_message_class_and_frames_remain() -> None:
    words = "no bed for Ann\n  at Ann, home line 3"

    def handle() -> None:
        raise ValueError(words)

    text = text_of(raised(handle))
    assert "Ann" in text
    kept = without_words(text).splitlines()
    assert kept[0] == "ValueError: its words are not kept, as they may quote the body"
    assert kept[1].startswith("  at handle, ")
    assert "home" not in "".join(kept)


@pytest.mark.parametrize(
    "text", ["", "Ann is ill", "Ann", "a b: Ann", "  at Ann, home", "no colon\n  Ann", "Ann: no bed\n  at home"]
)
def test_other_texts_are_removed_completely(text: str) -> None:
    assert without_words(text) == "its words are not kept, as they may quote the body"


def test_a_decrypting_consumer_reports_no_error_message() -> None:
    message = ReceivedMessage("t", b"ann")
    encryption = AesGcm({"july": bytes(32)}, current="july")
    for subscriptions, said in ((Subscriptions("g"), True), (Subscriptions("g", None, encryption), False)):

        @subscriptions.add("t", "*")
        def handle(message: ReceivedMessage) -> None: ...

        failure = subscriptions.handlers["t"].failure_of(message, raised(lambda: float("ann")))
        assert failure is not None
        assert failure.error.startswith("ValueError: ")
        assert ("could not convert" in failure.error) is said
