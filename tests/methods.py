"""All methods of the servers and the fields of their messages, of Protobuf and of dataclasses."""

from __future__ import annotations

import importlib
import json
import pkgutil
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from datetime import datetime
from enum import StrEnum
from types import ModuleType, NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints
from uuid import UUID

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

import txmsg.administration
import txmsg.wire.users
import txmsg.wire.v1
from txmsg.wire.method import Method, methods_of

_OF_PROTOBUF = {
    FieldDescriptor.TYPE_BOOL: bool,
    FieldDescriptor.TYPE_BYTES: bytes,
    FieldDescriptor.TYPE_DOUBLE: float,
    FieldDescriptor.TYPE_STRING: str,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A field of a message. kind: type of one item: a message, str, bytes, int, float, bool, UUID, datetime or Any.

    choices: the only texts that it may be. number: what Protobuf calls its type; 0 in a dataclass.
    """

    name: str
    kind: Any
    is_list: bool = False
    is_map: bool = False
    is_required: bool = False
    is_alternative: bool = False
    choices: Sequence[str] = ()
    number: int = 0

    @property
    def is_message(self) -> bool:
        return is_dataclass(self.kind) or (isinstance(self.kind, type) and issubclass(self.kind, Message))


def _modules() -> Iterator[ModuleType]:
    for package in (txmsg.wire.v1, txmsg.administration):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            yield importlib.import_module(module.name)
    yield txmsg.wire.users  # which MetaQ servers ask


def every_method() -> dict[str, Method[Any, Any]]:
    """Return every method by its name on the wire."""
    services = [each for module in _modules() for each in vars(module).values() if isinstance(each, type)]
    return {method.name: method for service in services for method in methods_of(service).values()}


def parts_of(kind: Any) -> dict[str, Part]:
    """Return the fields of a message, by name."""
    if is_dataclass(kind):
        hints = get_type_hints(kind, include_extras=True)
        return {
            each.name: _of_hint(each.name, hints[each.name], each.default is each.default_factory is MISSING)
            for each in fields(kind)
        }
    return {each.name: _of_descriptor(each) for each in kind.DESCRIPTOR.fields}


def _of_hint(name: str, hint: Any, is_required: bool) -> Part:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _of_hint(name, arguments[0], is_required)
    if origin in (Union, UnionType):
        (given,) = (each for each in arguments if each is not NoneType)
        return _of_hint(name, given, is_required)
    if origin is Literal:
        return Part(name=name, kind=str, choices=arguments, is_required=is_required)
    if origin in (Sequence, frozenset, Mapping):
        item = _of_hint(name, arguments[-1], is_required)
        return Part(
            name=name,
            kind=item.kind,
            choices=item.choices,
            is_required=is_required,
            is_list=origin is not Mapping,
            is_map=origin is Mapping,
        )
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return Part(name=name, kind=str, choices=[str(each) for each in hint], is_required=is_required)
    return Part(name=name, kind=hint, is_required=is_required)


def _of_descriptor(field: Any) -> Part:
    name, is_alternative = field.name, field.containing_oneof is not None
    if field.message_type is None:
        kind = _OF_PROTOBUF.get(field.type, int)
        return Part(name=name, kind=kind, is_list=field.is_repeated, is_alternative=is_alternative, number=field.type)
    if field.message_type.GetOptions().map_entry:
        return Part(name=name, kind=_of_descriptor(field.message_type.fields_by_name["value"]).kind, is_map=True)
    kind = GetMessageClass(field.message_type)
    return Part(name=name, kind=kind, is_list=field.is_repeated, is_alternative=is_alternative)


def made(kind: Any, /, **values: Any) -> Any:
    """Return a message with these values and with something in its required fields: a dataclass or one of Protobuf."""
    if is_dataclass(kind):
        required = {part.name: _nothing(part) for part in parts_of(kind).values() if part.is_required}
        return kind(**required | values)  # type: ignore[operator]  # mypy takes it for an instance
    return kind(**values)


def _nothing(part: Part) -> Any:
    if part.is_list or part.is_map:
        return {} if part.is_map else []
    if part.choices:
        return part.choices[0]
    if part.is_message:
        return made(part.kind)
    if part.kind is int:
        return 1  # which each Range has
    return {UUID: UUID(int=0), datetime: None}[part.kind] if part.kind in (UUID, datetime) else part.kind()


def unchecked(message: Any) -> bytes:
    """Return the encoded message, even with invalid values in fields. message: of Protobuf, or values of JSON."""
    if isinstance(message, Message):
        return message.SerializeToString()
    return json.dumps(message, default=_plain).encode()


def _plain(value: Any) -> Any:
    return b64encode(value).decode() if isinstance(value, bytes) else str(value)
