"""The messages that an application sends and receives, by its declarations, for its AsyncAPI document. Calls no
handler."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from txmsg.client.app.dependencies import hints_of
from txmsg.client.app.router import Subscription, injected_of, payloads_of
from txmsg.client.transactional import signature_of_calls
from txmsg.errors import MisuseError
from txmsg.message.typed.asyncapi import Operation, PayloadByName
from txmsg.message.typed.codecs import Codec, Schema, codec_of, is_model
from txmsg.message.typed.fields import fields_schema, is_field
from txmsg.message.typed.topic import Topic
from txmsg.message.typed.topic import name_of as name_of_topic


class Decorated(NamedTuple):
    """A function of `@app.transactional_message`. is_built: True if `message=` makes its messages."""

    topic: str | Topic[Any]
    function: Callable[..., Any]
    is_built: bool

    @property
    def name(self) -> str:
        """Its qualified name within its module."""
        return self.function.__qualname__.rpartition("<locals>.")[2]


def operations_of(
    sends: Iterable[Topic[Any]], decorated: Iterable[Decorated], subscriptions: Iterable[Subscription]
) -> Iterator[Operation]:
    """Yield the application's operations, once for each topic, direction and group."""
    sent = dict.fromkeys([*(topic.name for topic in sends), *(name_of_topic(each.topic) for each in decorated)])
    for name in sent:
        yield Operation(action="send", topic=name)
    for each in subscriptions:
        for topic in each.topics:
            yield Operation(action="receive", topic=topic, group=each.group or "", is_of_log=each.source == "log")


def payloads_by_name(decorated: Iterable[Decorated], subscriptions: Iterable[Subscription]) -> Iterator[PayloadByName]:
    """Yield payloads of topics that are named, not typed: by the annotations of the functions that send and receive
    them."""
    for each in decorated:
        if not isinstance(each.topic, Topic) and not each.is_built:
            schema, models = _schema_of_arguments(each.function)
            yield PayloadByName(topic=each.topic, by=each.name, schema=schema, models=models)
    for subscription in subscriptions:
        for topic, payload in payloads_of(subscription, injected_of(subscription)).items():
            if isinstance(payload, type):
                codec: Codec[Any] = codec_of(payload)
                yield PayloadByName(
                    topic=topic, by=subscription.group or "", schema=codec.schema(), content_type=codec.content_type
                )


def _schema_of_arguments(function: Callable[..., Any]) -> tuple[Schema, Mapping[str, Schema]]:
    """Return the schema of a JSON object with all arguments, including defaults; and the schemas of models among them,
    by name."""
    signature, receiver = signature_of_calls(function, drop_session=True)
    names = [name for name in signature.parameters if name != receiver]
    try:
        hints = hints_of(function, inspect.unwrap(function), names)
    except MisuseError:  # of a type checker alone, such as imports under TYPE_CHECKING: it sends all the same
        hints = {}
    kinds = {name: hints.get(name, Any) for name in names}
    models = {name: codec_of(kind).schema() for name, kind in kinds.items() if is_model(kind)}
    fields = {name: kind if is_field(kind) else Any for name, kind in kinds.items()}
    return fields_schema(fields), models
