"""An AsyncAPI 3.0 document of topics, their payloads, senders and receivers. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain, count
from typing import Any, Final, Literal

from txmsg.message.typed.codecs import JSON, Schema
from txmsg.message.typed.names import is_pattern, prefix_of
from txmsg.message.typed.registry import SchemaVersion
from txmsg.message.typed.topic import VERSION_HEADER

_ODD_IN_NAME: Final = re.compile(r"[^A-Za-z0-9._-]")
_DEFINITION: Final = "#/$defs/"
_BY_NAME: Final = frozenset({"properties", "patternProperties"})
_SEVERAL: Final = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_ONE: Final = frozenset({"items", "additionalProperties", "not"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """An application's use of a topic: send or receive. group: the consumer group of a subscription.

    is_of_log: the messages come from a log, not from brokers.
    """

    action: Literal["send", "receive"]
    topic: str
    group: str = ""
    is_of_log: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadByName:
    """The payload of a topic that is given by its name. by: the consumer group or function that declares it.

    models: schemas of fields that have definitions of their own, by the names of the fields.
    """

    topic: str
    by: str
    schema: Schema
    content_type: str = JSON
    models: Mapping[str, Schema] = field(default_factory=dict)


def asyncapi(
    schemas: Iterable[SchemaVersion],
    operations: Iterable[Operation] = (),
    payloads: Iterable[PayloadByName] = (),
    *,
    title: str,
    version: str,
) -> dict[str, Any]:
    """Return the document: a channel for each topic, with a message for each version of its schema.

    payloads: of topics that are given by their names. title, version: of the document's subject, as a rule the
    application.
    """
    channels: dict[str, Any] = {}
    definitions: dict[str, Any] = {}
    for each in sorted(schemas, key=lambda each: (each.topic, each.version)):
        name = f"{_named(each.topic)}.v{each.version}"
        _channel(channels, each.topic)["messages"][f"v{each.version}"] = {
            "name": name,
            "contentType": each.content_type,
            "headers": {
                "type": "object",
                "properties": {VERSION_HEADER: {"type": "string", "const": str(each.version)}, **_event_headers(each)},
            },
            "payload": {"$ref": f"#/components/schemas/{name}"},
        }
        _define(definitions, name, each.schema)
    for payload in payloads:
        messages = _channel(channels, payload.topic)["messages"]
        by = _not_in(messages, _named(payload.by))
        name = f"{_named(payload.topic)}.{by}"
        messages[by] = {
            "name": name,
            "contentType": payload.content_type,
            "payload": {"$ref": f"#/components/schemas/{name}"},
        }
        _define(definitions, name, payload.schema)
        for inner, schema in payload.models.items():
            _define(definitions, f"{name}.{_named(inner)}", schema)
            definitions[name]["properties"][inner] = {"$ref": f"#/components/schemas/{name}.{_named(inner)}"}
    done: dict[str, Any] = {}
    for operation in operations:
        _channel(channels, operation.topic)
        name = ".".join(filter(None, (operation.action, _named(operation.topic), _named(operation.group))))
        of_log = " of the log" if operation.is_of_log else ""
        done[name] = {
            "action": operation.action,
            "channel": {"$ref": f"#/channels/{_named(operation.topic)}"},
            **({"title": f"consumer group {operation.group}{of_log}"} if operation.group else {}),
        }
    return {
        "asyncapi": "3.0.0",
        "info": {"title": title, "version": version},
        "defaultContentType": "application/json",
        "channels": channels,
        **({"operations": done} if done else {}),
        "components": {"schemas": definitions},
    }


def _not_in(taken: Mapping[str, Any], name: str) -> str:
    """Return the name, with a number if it is taken: functions of two modules may have the same name."""
    return next(each for each in chain([name], (f"{name}-{n}" for n in count(2))) if each not in taken)


def _define(definitions: dict[str, Any], name: str, whole: Mapping[str, Any]) -> None:
    """Add a schema to the document, and its own definitions beside it."""
    schema = dict(whole)
    for inner, definition in schema.pop("$defs", {}).items():
        definitions[f"{name}.{_named(inner)}"] = _placed(definition, name)
    definitions[name] = _placed(schema, name)


def _channel(channels: dict[str, Any], topic: str) -> dict[str, Any]:
    new: dict[str, Any] = {"address": topic, "messages": {}}
    if is_pattern(topic):
        of_rest = {"description": "The rest of the name of a topic: it is any of those that begin so."}
        new |= {"address": f"{prefix_of(topic)}{{rest}}", "parameters": {"rest": of_rest}}
    channel: dict[str, Any] = channels.setdefault(_named(topic), new)
    return channel


def _event_headers(schema: SchemaVersion) -> dict[str, Any]:
    """Return the attributes of CloudEvents, if the schema's messages have them."""
    if schema.event_source is None:
        return {}
    return {
        "ce_specversion": {"type": "string", "const": "1.0"},
        "ce_id": {"type": "string", "description": "Another one for each event."},
        "ce_source": {"type": "string", "const": schema.event_source},
        "ce_type": {"type": "string", "const": schema.topic},
        "ce_time": {"type": "string", "format": "date-time"},
    }


def _named(text: str) -> str:
    """Return a key of the document, which allows fewer characters than names of topics."""
    return _ODD_IN_NAME.sub("_", text)


def _placed(part: Any, name: str) -> Any:
    """Return a part of a schema with its references changed to the places of its definitions in the document."""
    if not isinstance(part, dict):
        return part
    placed: Schema = {}
    for word, value in part.items():
        if word == "$ref":
            inner = value.removeprefix(_DEFINITION)
            placed[word] = "#/components/schemas/" + (name if value == "#" else f"{name}.{_named(inner)}")
        elif word == "discriminator" and isinstance(value, dict):
            placed[word] = value["propertyName"]  # as AsyncAPI has it; the mapping is that of OpenAPI
        elif word in _BY_NAME:
            placed[word] = {each: _placed(inner, name) for each, inner in value.items()}
        elif word in _SEVERAL:
            placed[word] = [_placed(each, name) for each in value]
        else:
            placed[word] = _placed(value, name) if word in _ONE else value
    return placed
