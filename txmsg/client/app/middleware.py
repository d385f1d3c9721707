"""Middleware around `def` handlers of lists: entered on the thread on which the handler runs, as around any other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from txmsg.client.app.batches import results_of
from txmsg.message import ReceivedMessage

HandleList = Callable[[list[ReceivedMessage]], Any]


def within_lists(
    handle: HandleList, middleware: Sequence[Callable[[ReceivedMessage], AbstractContextManager[Any]]]
) -> HandleList:
    """Return `handle` with the middleware of each message of a list entered around it.

    The middleware of a message sees the result of this message only. If entering it raises, the message is refused, and
    the handler gets the others. Returns one result for each message, as a handler of lists may.
    """

    def handle_within(messages: list[ReceivedMessage]) -> list[Exception | None]:
        entered = [_Entered(message, middleware) for message in messages]
        inside = [each for each in entered if each.is_inside]
        try:
            results = _handled(handle, [each.message for each in inside])
        except BaseException as exc:  # the test's own, or of a thread that ends
            for each in reversed(inside):
                each.leave(exc)
            raise
        for each, result in zip(reversed(inside), reversed(results), strict=True):
            each.leave(result)
        return [each.result for each in entered]

    return handle_within


def _handled(handle: HandleList, messages: list[ReceivedMessage]) -> list[Exception | None]:
    """Return the error of each message, or None."""
    if not messages:
        return []
    try:
        return results_of(handle(messages), len(messages))
    except Exception as exc:  # noqa: BLE001 - whatever a handler raises refuses its messages
        return [exc] * len(messages)


class _Entered:
    """A message, inside its middleware."""

    def __init__(
        self,
        message: ReceivedMessage,
        middleware: Sequence[Callable[[ReceivedMessage], AbstractContextManager[Any]]],
    ) -> None:
        self.message = message
        self.result: Exception | None = None
        """The error of the message once it was left; None if it was handled."""
        self.is_inside = True
        self._stack = ExitStack()
        try:
            for around in middleware:
                self._stack.enter_context(around(message))
        except BaseException as exc:
            self.leave(exc)
            if not isinstance(exc, Exception):
                raise

    def leave(self, failed: BaseException | None) -> None:
        """Exit the middleware with the message's error, or None. Raises the middleware's BaseExceptions; an Exception
        is the result."""
        self.is_inside = False
        trace = None if failed is None else failed.__traceback__
        try:
            is_suppressed = self._stack.__exit__(None if failed is None else type(failed), failed, trace)
        except Exception as exc:  # noqa: BLE001 - what leaves the middleware counts as the handler's
            self.result = exc
        else:
            self.result = failed if isinstance(failed, Exception) and not is_suppressed else None
