"""Hooks, entered when an application starts and exited when it ends: the user's functions and context managers."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Executor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any, Final, Literal

from txmsg.errors import MisuseError, shown
from txmsg.runtime.user_function import finished, finished_async, is_coroutine, name_of

Hook = Callable[[], Any]
"""Returns a context manager of either kind."""

_NO_ERROR: Final = (None, None, None)


def hook_of(given: Any) -> Hook:
    """Return the hook of a context manager, of a function that returns one, or of one that yields once. Raises
    MisuseError."""
    if inspect.isasyncgenfunction(given):
        return asynccontextmanager(given)
    if inspect.isgeneratorfunction(given):
        return contextmanager(given)
    if _is_manager(given):
        return lambda: given
    if not callable(given):
        raise MisuseError(f"lifespan({shown(given)}): give a function that yields once, or a context manager")

    def made() -> Any:
        manager = given()
        if not _is_manager(manager):
            raise MisuseError(f"lifespan {name_of(given)} returned {shown(manager)}: it must yield once")
        return manager

    return made


def hook_of_call(given: Any, at: Literal["startup", "shutdown"]) -> Hook:
    """Return the hook of a function that is called at the start, or at the end. Raises MisuseError."""
    if not callable(given):
        raise MisuseError(f"on_{at}({shown(given)}) is given no function")
    if inspect.isgeneratorfunction(given) or inspect.isasyncgenfunction(given):
        raise MisuseError(f"on_{at} {name_of(given)} yields, so it would not run: decorate it with @app.lifespan")

    @asynccontextmanager
    async def around_async() -> AsyncIterator[None]:
        if at == "startup":
            await finished_async(name_of(given), await given())
        try:
            yield
        finally:  # also when another one has failed
            if at == "shutdown":
                await finished_async(name_of(given), await given())

    @contextmanager
    def around() -> Iterator[None]:
        if at == "startup":
            finished(name_of(given), given())
        try:
            yield
        finally:
            if at == "shutdown":
                finished(name_of(given), given())

    return around_async if is_coroutine(given) else around


def entered(manager: Any, thread: Executor) -> AbstractAsyncContextManager[Any]:
    """Return the manager as one for coroutines: a blocking one is entered and exited on the thread, and blocks it
    alone.

    All of an application share the thread: connections of some databases cannot be used by another one.
    """
    return manager if hasattr(manager, "__aenter__") else _on_thread(manager, thread)


@asynccontextmanager
async def _on_thread(manager: Any, thread: Executor) -> AsyncIterator[Any]:
    loop = asyncio.get_running_loop()
    value = await loop.run_in_executor(thread, manager.__enter__)
    try:
        yield value
    except BaseException:
        if not await loop.run_in_executor(thread, manager.__exit__, *sys.exc_info()):
            raise
    else:
        await loop.run_in_executor(thread, manager.__exit__, *_NO_ERROR)


def _is_manager(given: Any) -> bool:
    return hasattr(given, "__aenter__") or hasattr(given, "__enter__")
