"""Messages that a handler returns or yields: sent with its transaction, as by `tx.send`.

Decides what counts as messages; transactions are defined in `client.flows`.
"""

from __future__ import annotations

import inspect
from contextlib import aclosing, closing
from types import AsyncGeneratorType, GeneratorType
from typing import Any, get_args

from txmsg.client.flows.transaction import Transaction
from txmsg.errors import MisuseError, shown
from txmsg.message import Message
from txmsg.runtime.user_function import finished


def names_messages(annotation: Any) -> bool:
    """Return True if a return annotation contains Message: `Message | None`, `list[Message]`, `Iterator[Message]`."""
    if isinstance(annotation, type) and not get_args(annotation):
        return issubclass(annotation, Message)
    return any(names_messages(each) for each in get_args(annotation))


def send_returned(tx: Transaction, name: str, result: Any) -> None:
    """Send the messages that a `def` handler of this name has returned; run its body if it is a generator.

    Raises MisuseError for anything but messages, and the exceptions of the body.
    """
    match result:
        case None:
            return
        case Message():
            tx.send(result)
        case list() | tuple():
            for each in result:
                tx.send(_checked(name, "returned", each))
        case GeneratorType():
            with closing(result):  # also where it has yielded what is refused
                for each in result:
                    tx.send(_checked(name, "yielded", each))
        case _:
            raise _no_message(name, "returned", finished(name, result))


async def send_returned_async(tx: Transaction, name: str, result: Any) -> None:
    """Send the messages that an `async def` handler of this name has returned or yields, as `send_returned`."""
    if isinstance(result, AsyncGeneratorType):
        async with aclosing(result):
            async for each in result:
                tx.send(_checked(name, "yielded", each))
        return
    if inspect.isawaitable(result):
        result = await result
    send_returned(tx, name, result)


def _checked(name: str, did: str, value: object) -> Message:
    if not isinstance(value, Message):
        raise _no_message(name, did, value)
    return value


def _no_message(name: str, did: str, value: object) -> MisuseError:
    return MisuseError(
        f"{name} {did} {shown(value)} of type {type(value).__name__}: a handler that sends returns None, a Message or "
        "a list of them, or yields each; for a value write Topic(...).message(value), or tx.send(topic, value)"
    )
