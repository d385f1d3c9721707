"""From a call's arguments to its message: key, tag and the default body. Pure."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from uuid import UUID

from txmsg.errors import InvalidMessage, MisuseError
from txmsg.message import Message, check_name

__all__ = ["MessagePlan", "body_of_arguments"]

Builder = Callable[..., Message | Sequence[Message] | bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagePlan:
    """How the messages of a decorated function are made. Raises MisuseError for a key that names no argument.

    signature: that of the calls, without the session. receiver: the name of `self`, which is no part of the message.
    """

    signature: inspect.Signature
    topic: str | None
    key: str | Callable[..., object] | None
    tag: str | None
    builder: Builder | None
    receiver: str | None = None

    def __post_init__(self) -> None:
        if self.topic is not None:
            check_name("topic", self.topic)
        elif self.builder is None:
            raise MisuseError("@transactional_message needs topic=, or message= that builds whole messages")
        if self.tag is not None:
            check_name("tag", self.tag)
        if isinstance(self.key, str) and self.key not in self._names():
            raise MisuseError(
                f"key={self.key!r} names no argument: there are {', '.join(self._names()) or 'none'}; "
                "give one of these, or a function of the arguments"
            )

    def _names(self) -> list[str]:
        return [name for name in self.signature.parameters if name != self.receiver]

    def messages(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> list[Message]:
        """The messages of one call. Raises TypeError for arguments that do not fit, InvalidMessage."""
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = {name: value for name, value in bound.arguments.items() if name != self.receiver}
        built: Message | Sequence[Message] | bytes
        built = body_of_arguments(arguments) if self.builder is None else self.builder(*args, **kwargs)
        if isinstance(built, bytes):
            if self.topic is None:
                raise MisuseError("message= returned bytes, which need a topic=")
            key = _key_text(self.key, arguments, args, kwargs)
            return [Message(topic=self.topic, body=built, key=key, tag=self.tag)]
        return [built] if isinstance(built, Message) else list(built)


def _key_text(
    key: str | Callable[..., object] | None,
    arguments: Mapping[str, object],
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
) -> str | None:
    if key is None:
        return None
    value = arguments[key] if isinstance(key, str) else key(*args, **kwargs)
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int | UUID | Decimal):
        return str(value)
    if isinstance(value, date | time):
        return value.isoformat()
    raise InvalidMessage(
        f"the key is a {type(value).__name__}, which has no text of its own: give key= a function that returns str"
    )


def body_of_arguments(arguments: Mapping[str, object]) -> bytes:
    """The arguments as one JSON object in UTF-8. UUID, Decimal, datetime, date and time become strings.

    Raises InvalidMessage naming the argument that JSON cannot carry (NaN and infinities are among these).
    """
    try:
        return _ENCODER.encode(arguments).encode()
    except (TypeError, ValueError, RecursionError):
        for name, value in arguments.items():
            try:
                _ENCODER.encode(value).encode()
            except (TypeError, ValueError, RecursionError) as exc:
                raise InvalidMessage(
                    f"argument {name!r} ({type(value).__name__}) cannot stand in a JSON body: {exc}; "
                    "build the message with message="
                ) from exc
        raise


def _plain(value: object) -> str:
    if isinstance(value, UUID | Decimal):
        return str(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} is not JSON")


_ENCODER = json.JSONEncoder(default=_plain, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
