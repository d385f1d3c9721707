"""From a call's arguments to its message: key, tag and the default body. Pure."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from txmsg.errors import InvalidMessage, MisuseError, shown
from txmsg.message import Message, check_name, check_tag
from txmsg.message.typed.text import NOT_JSON, json_of, key_of, named, why_not_json
from txmsg.message.typed.topic import Topic

Key = str | Callable[..., object] | None
Builder = Callable[..., Message | Sequence[Message] | bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagePlan:
    """The way from the arguments of a decorated function to its messages. Raises MisuseError for a key that names no
    argument.

    owner: the function, as errors name it. signature: that of the calls, without the session. receiver: the name of
    `self`, which is no part of the message. gives_session: callers leave the session out.
    """

    owner: str
    signature: inspect.Signature
    topic: str | Topic[Any] | None
    key: Key
    ordering_key: Key = None
    tag: str | None
    builder: Builder | None
    receiver: str | None = None
    gives_session: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.topic, Topic):
            self._check_typed(self.topic)
        elif self.topic is not None:
            check_name("topic", self.topic)
        elif self.builder is None:
            raise MisuseError(
                f"@transactional_message of {self.owner} needs topic=, or message= that builds whole messages"
            )
        if self.builder is not None and (not callable(self.builder) or inspect.iscoroutinefunction(self.builder)):
            raise MisuseError(
                f"message={shown(self.builder)} of {self.owner} must be a plain function of the same arguments, that "
                "returns the body as bytes, a Message, or several"
            )
        if self.tag is not None:
            check_tag(self.tag)
        for what, key in (("key", self.key), ("ordering_key", self.ordering_key)):
            if key is not None and not callable(key) and key not in self._names():
                raise MisuseError(
                    f"{what}={shown(key)} names no argument of {self.owner}: there are "
                    f"{', '.join(self._names()) or 'none'}; give one of these, or a function of the arguments"
                )

    def _check_typed(self, topic: Topic[Any]) -> None:
        for what, key in (("key", self.key), ("ordering_key", self.ordering_key)):
            if key is not None:
                raise MisuseError(
                    f"{what}= of {self.owner} is given beside {topic!r}, which knows the keys of its messages: write "
                    f"Topic(..., {what}=...)"
                )
        if self.builder is not None:
            raise MisuseError(
                f"message= of {self.owner} is given beside topic={topic!r}: leave topic= out, and let message= return "
                "what its message() makes"
            )
        if len(self._names()) != 1 and not topic._is_made_of(self._names()):
            kind = topic.payload_type.__name__
            raise MisuseError(
                f"the arguments {self._call()} of {self.owner} are neither one {kind} nor those that {kind} is made "
                f"of: give message= a function that returns what the message() of {topic!r} makes, instead of topic="
            )

    def _names(self) -> list[str]:
        return [name for name in self.signature.parameters if name != self.receiver]

    def _call(self) -> str:
        """Return the arguments of one call as text, untyped."""
        parameters = [
            self.signature.parameters[name].replace(annotation=inspect.Parameter.empty) for name in self._names()
        ]
        return str(inspect.Signature(parameters))

    def messages(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> list[Message]:
        """Return the messages of one call. Raises TypeError for arguments that do not fit, InvalidMessage,
        MisuseError."""
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as exc:
            given = ", as session= gives the session" if self.gives_session else ""
            raise TypeError(f"{self.owner} takes {self._call()}{given}: {exc}") from None
        bound.apply_defaults()
        arguments = {name: value for name, value in bound.arguments.items() if name != self.receiver}
        if isinstance(self.topic, Topic):
            # Built before the half message is sent, so that an invalid argument fails while nothing has happened yet.
            return [self.topic.message(self._payload(self.topic, arguments), tag=self.tag)]
        built: object
        if self.builder is None:
            built = body_of_arguments(arguments, owner=self.owner)
        else:
            built = self.builder(*args, **kwargs)
        if isinstance(built, bytes):
            if self.topic is None:
                raise MisuseError(f"message= of {self.owner} returned bytes, which need a topic=")
            key, ordering_key = (
                self._text_of(what, given, arguments, args, kwargs)
                for what, given in (("key", self.key), ("ordering_key", self.ordering_key))
            )
            return [Message(topic=self.topic, body=built, key=key, tag=self.tag, ordering_key=ordering_key)]
        messages = [built] if isinstance(built, Message) else self._several(built)
        if not messages:
            raise MisuseError(f"message= of {self.owner} returned no message: give one, or do not decorate it")
        return messages

    def _payload(self, topic: Topic[Any], arguments: Mapping[str, object]) -> object:
        """Return the only argument, if it is a payload; else the body made of all arguments."""
        if len(arguments) == 1:
            (argument,) = arguments.values()
            if isinstance(argument, topic.payload_type):
                return argument
        return topic._made_of(arguments, owner=self.owner)

    def _several(self, built: object) -> list[Message]:
        several: list[Message] = []
        for item in built if isinstance(built, Iterable) and not isinstance(built, str | Mapping) else [built]:
            if not isinstance(item, Message):
                raise MisuseError(
                    f"message= of {self.owner} returned {shown(item)} of type {type(item).__name__}: return the body "
                    "as bytes, a Message, or a list of Message"
                )
            several.append(item)
        return several

    def _text_of(
        self,
        what: str,
        key: Key,
        arguments: Mapping[str, object],
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
    ) -> str | None:
        if key is None:
            return None
        value = key(*args, **kwargs) if callable(key) else arguments[key]
        text = key_of(value)
        if text is None and value is not None:
            raise InvalidMessage(
                f"the {what} of {self.owner} is {named(value)}, which has no short text form: give {what}= a function "
                "that returns str"
            )
        return text


def body_of_arguments(arguments: Mapping[str, object], *, owner: str) -> bytes:
    """Return the arguments as one JSON object in UTF-8. UUID, Decimal, datetime, date and time become strings.

    Raises InvalidMessage naming the argument that JSON cannot carry (NaN and infinities are among these), and `owner`,
    the function that was called.
    """
    try:
        return json_of(arguments)
    except NOT_JSON:
        for name, value in arguments.items():
            try:
                json_of(value)
            except NOT_JSON as exc:
                raise InvalidMessage(
                    f"argument {name!r} of {owner} is {named(value)} that JSON cannot represent ({why_not_json(exc)}): "
                    "give @transactional_message a message= function that builds the body"
                ) from exc
        raise
