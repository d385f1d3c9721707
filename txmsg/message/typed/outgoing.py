"""Makes the message of a value that is sent to a topic."""

from __future__ import annotations

from typing import Any

from txmsg.errors import InvalidMessage, MisuseError, shown
from txmsg.message import Message
from txmsg.message.typed.text import NOT_JSON, json_of, key_of, named, why_not_json
from txmsg.message.typed.topic import Topic


def outgoing(owner: str, message: Message | str | Topic[Any], value: object = ..., **options: Any) -> Message:
    """Return the message that a caller of `owner` sends: the given one, or one made of a topic and a value.

    Raises InvalidMessage, MisuseError.
    """
    if isinstance(message, str | Topic):
        if value is ...:
            raise MisuseError(f"{owner}({shown(message)}) has no value to send: write {owner}(topic, value)")
        return message_of(message, value, **options)
    if not isinstance(message, Message):
        raise InvalidMessage(f"{owner} got {shown(message)} of type {type(message).__name__}: send a Message")
    if value is not ... or any(option is not None for option in options.values()):
        raise MisuseError(f"{owner} is given a Message and more: give the Message all that it has")
    return message


def message_of(
    topic: str | Topic[Any],
    value: object,
    *,
    key: object = None,
    ordering_key: object = None,
    tag: str | None = None,
) -> Message:
    """Return the message of a value: by its `Topic`; for a topic's name, with the value as JSON, or the given bytes.

    Raises InvalidMessage, MisuseError.
    """
    if isinstance(topic, Topic):
        if key is not None or ordering_key is not None:
            raise MisuseError(
                f"a key is given beside {topic!r}, which knows the keys of its messages: write Topic(..., key=...)"
            )
        return topic.message(value, tag=tag)
    return Message(
        topic,
        _body_of(topic, value),
        key=_text_of("key", topic, key),
        ordering_key=_text_of("ordering_key", topic, ordering_key),
        tag=tag,
    )


def _body_of(topic: str, value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    try:
        return json_of(value)
    except NOT_JSON as exc:
        raise InvalidMessage(
            f"the value for topic {topic!r} is {named(value)} that JSON cannot represent ({why_not_json(exc)}): give "
            "bytes, or a value of a Topic's type"
        ) from exc


def _text_of(what: str, topic: str, key: object) -> str | None:
    text = key_of(key)
    if text is None and key is not None:
        raise InvalidMessage(
            f"the {what} for topic {topic!r} is {named(key)}, which has no short text form: give its str"
        )
    return text
