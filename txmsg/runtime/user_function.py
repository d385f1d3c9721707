"""Calls the user's functions, handlers and check listeners, so that no behaviour of theirs ends the loop.

Checks what can be checked when they are given, so that a mistake shows at import and not at the first lost message.
Knows neither messages nor brokers.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import itertools
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from types import AsyncGeneratorType, GeneratorType
from typing import Any, Final, TypeVar

from txmsg.errors import MisuseError, said_by, shown

in_handler: contextvars.ContextVar[bool] = contextvars.ContextVar("txmsg_in_handler", default=False)
"""True while a handler runs: one that calls `stop` must not wait for itself."""
_LAZY: Final = (GeneratorType, AsyncGeneratorType, map, filter, itertools.starmap)
"""Types that run only when they are iterated, long after the transaction in which they were made."""

R = TypeVar("R")


class NotBegun(BaseException):
    """Raised before a user's function is called, so that it is not called now: its argument is delivered again.

    Not an Exception, so that nothing around the function takes it for a failure.
    """


class UserFunction:
    """A function of one argument, `def` or `async def`. Raises MisuseError for objects that cannot be called so.

    around: returns for an argument the context manager that `on_loop` and `on_thread` enter around the call, or None.
    convert: converts the argument for the function. finish: as `finished`, called with name and result.
    """

    __slots__ = ("_around", "_finish", "_function", "_name", "is_coroutine")

    def __init__(
        self,
        what: str,
        function: object,
        parameter: str,
        *,
        around: Callable[[Any], AbstractContextManager[object] | None] | None = None,
        convert: Callable[[Any], Any] | None = None,
        finish: Callable[[str, Any], Any] | None = None,
    ) -> None:
        call: Callable[..., Any] = check_takes(what, function, parameter)
        self._function = call if convert is None else _converted(call, convert)
        self._around = around
        self._finish = finish or finished
        self._name = name_of(function)
        self.is_coroutine = is_coroutine(function)

    async def __call__(self, argument: object, threads: Executor) -> Any:
        """Call the function and return its result; a plain one runs on a thread.

        Its exceptions are raised, but always as an Exception: asyncio lets SystemExit end the loop, takes a
        CancelledError for the cancellation of the caller, and never sees a StopIteration.
        """
        if self.is_coroutine:
            return await self.on_loop(argument)
        # run_in_executor does not pass the context on, as asyncio.to_thread does.
        context = contextvars.copy_context()
        run = asyncio.get_running_loop().run_in_executor(threads, context.run, self._call, argument)
        return await self._awaited(run)

    def on_loop(self, argument: object) -> Coroutine[Any, Any, Any]:
        """Call a coroutine function, on the loop."""
        block = None if self._around is None else self._around(argument)
        if block is None:
            return self._awaited(self._function(argument))
        return self._on_loop_within(block, argument)

    async def _on_loop_within(self, block: AbstractContextManager[object], argument: object) -> Any:
        with block:
            return await self._awaited(self._function(argument))

    def on_thread(self, argument: object, loop: asyncio.AbstractEventLoop) -> Any:
        """Call a plain function, on a thread; an awaitable that it returns is awaited on the loop."""
        block = None if self._around is None else self._around(argument)
        if block is None:
            return self._on_thread(argument, loop)
        with block:
            return self._on_thread(argument, loop)

    def _on_thread(self, argument: object, loop: asyncio.AbstractEventLoop) -> Any:
        result = self._call(argument)
        if inspect.isawaitable(result):
            return asyncio.run_coroutine_threadsafe(self._awaited(result), loop).result()
        return self._finish(self._name, result)

    async def _awaited(self, work: Awaitable[Any]) -> Any:
        try:
            result = await work
            if result is None:  # as nearly always
                return None
            if inspect.isawaitable(result):
                result = await result
        except asyncio.CancelledError as exc:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise self._cancelled() from exc
        except (Exception, NotBegun):
            raise
        except BaseException as exc:  # SystemExit ends the loop; others, as a panic of Rust, end the task that calls
            raise self._left(exc) from exc
        return self._finish(self._name, result)

    def _call(self, argument: object) -> Any:
        try:
            return self._function(argument)
        except StopIteration as exc:
            raise self._left(exc) from exc
        except (Exception, NotBegun):
            raise
        except asyncio.CancelledError as exc:
            raise self._cancelled() from exc
        except BaseException as exc:  # it would end the thread that calls
            raise self._left(exc) from exc

    def _cancelled(self) -> RuntimeError:
        return RuntimeError(f"{self._name} ended in a CancelledError, though it was not cancelled")

    def _left(self, exc: BaseException) -> RuntimeError:
        return RuntimeError(f"{self._name} raised {type(exc).__name__}({said_by(exc)}): taken as any other exception")


def finished(name: str, result: R) -> R:
    """Return a function's result. Raises MisuseError for work that has yet to run, because no caller would await it.

    name: of the function, in the error.
    """
    if result is None:  # as nearly always
        return result
    if isinstance(result, _LAZY):
        kind = "generator" if isinstance(result, GeneratorType | AsyncGeneratorType) else type(result).__name__
        raise MisuseError(f"{name} returned a {kind}, whose body has not run: use a plain function")
    if inspect.isawaitable(result):
        if isinstance(result, Coroutine):
            result.close()
        raise MisuseError(f"{name} is def and returned a {type(result).__name__}, which has not run: make it async def")
    return result


async def finished_async(name: str, result: Any) -> Any:
    """Return the result of a function that runs on a loop; an awaitable result is awaited first."""
    if result is not None and inspect.isawaitable(result):
        result = await result
    return finished(name, result)


def is_coroutine(function: object) -> bool:
    """Return True for an `async def`, or an object whose call is one."""
    return any(inspect.iscoroutinefunction(body) for body in (function, type(function).__call__))


def name_of(function: object) -> str:
    """Return the name of a function for errors."""
    name = getattr(function, "__qualname__", None) or getattr(function, "__name__", None)
    return f"{name}()" if name else shown(function)


def check_takes(what: str, function: object, *parameters: str, is_all: bool = True) -> Callable[..., Any]:
    """Return `function` if it can be called with these positional parameters. is_all: and needs no others.

    Raises MisuseError otherwise.
    """
    if not callable(function):
        raise MisuseError(
            f"{what} is {shown(function)}, not a function: give one that is called as {_call(parameters)}"
        )
    if isinstance(function, type):
        raise MisuseError(f"{what} is the class {function.__name__}: give a function, or an instance")
    bodies = (function, type(function).__call__)
    if any(inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body) for body in bodies):
        raise MisuseError(f"{what} {name_of(function)} is a generator, whose body would never run: leave out yield")
    try:
        signature = inspect.signature(function)
    except ValueError:  # some functions written in C do not tell
        return function
    try:
        (signature.bind if is_all else signature.bind_partial)(*parameters)
    except TypeError as exc:
        raise MisuseError(
            f"{what} {name_of(function)} takes {signature}, but is called as {_call(parameters)}: {exc}"
        ) from exc
    return function


def _call(parameters: tuple[str, ...]) -> str:
    return f"({', '.join(parameters)})"


def _converted(call: Callable[..., Any], convert: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda argument: call(convert(argument))
