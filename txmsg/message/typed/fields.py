"""Reads fields of a JSON object by their annotations, the inverse of `json_of`. Knows no messages.

For payloads without a model: a TypedDict, and the parameters of a handler. Other types (classes of an application,
unions of several types) need a model of pydantic or msgspec.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from enum import Enum
from functools import partial
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    NotRequired,
    Required,
    TypedDict,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)
from uuid import UUID

from txmsg.errors import MisuseError, shown

Read = Callable[[Any], Any]
"""Converts a JSON value. Raises ValueError, whose text says what the value must be and does not quote it."""
Schema = dict[str, Any]
_Reader = tuple[Read, Schema]

_DURATION: Final = re.compile(
    r"([+-]?)P(?=[\dT])(?:(\d{1,9})D)?"
    r"(?:T(?=\d)(?:(\d{1,9})H)?(?:(\d{1,9})M)?(?:(\d{1,14})(?:[.,](\d{1,6}))?S)?)?",
    re.ASCII,
)
"""Durations of ISO 8601 whose parts have a fixed length: no years, months and weeks."""


class Fields:
    """The fields of a TypedDict. Raises MisuseError for one whose type it cannot read."""

    def __init__(self, kind: Any) -> None:
        self._readers: dict[str, _Reader] = {}
        self._required: list[str] = []
        for name, annotation in get_type_hints(kind, include_extras=True).items():
            wrapper = get_origin(annotation)  # With postponed annotations, __required_keys__ does not see Required.
            if wrapper is Required or (wrapper is not NotRequired and name in kind.__required_keys__):
                self._required.append(name)
            reader = _reader_of(annotation)
            if reader is None:
                raise MisuseError(
                    f"field {name!r} of {kind.__name__} has the type {shown(annotation)}, which cannot be read from "
                    "JSON without a model: make it a pydantic model, a dataclass or a msgspec struct"
                )
            self._readers[name] = reader

    @property
    def names(self) -> Collection[str]:
        """The names of all fields, in their order."""
        return self._readers

    def are_in(self, names: Collection[str]) -> bool:
        """Return True if these names include the required fields, and only fields."""
        return set(self._required) <= set(names) <= self._readers.keys()

    def read(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of the given fields. Raises ValueError."""
        for name in self._required:
            if name not in given:
                raise ValueError(f"it lacks {name!r}")
        found = {}
        for name, (read, _) in self._readers.items():
            if name in given:
                try:
                    found[name] = read(given[name])
                except ValueError as exc:
                    raise ValueError(f"{name!r} {exc}") from None
        return found

    def schema(self) -> Schema:
        """Return the JSON Schema of the object."""
        properties = {name: schema for name, (_, schema) in self._readers.items()}
        return {"type": "object", "properties": properties, "required": self._required}


def fields_type(owner: str, fields: Mapping[str, tuple[Any, bool]]) -> type:
    """Return a TypedDict of these fields. fields: by name, annotation and True if required. owner: for its name."""
    annotations = {name: kind if is_required else NotRequired[kind] for name, (kind, is_required) in fields.items()}
    make: Any = TypedDict  # whose name a type checker wants as a literal
    made: type = make(f"fields of {owner}", annotations)
    return made


def fields_schema(fields: Mapping[str, Any]) -> Schema:
    """Return the JSON Schema of an object with these fields, all required. Raises MisuseError for unreadable types."""
    make: Any = TypedDict
    return Fields(make("fields", dict(fields))).schema()


def is_field(annotation: Any) -> bool:
    """Return True if a field of this type can be read from JSON."""
    return _reader_of(annotation) is not None


def _reader_of(kind: Any) -> _Reader | None:
    """Return the reader of values of this type, and their JSON Schema; None for an unknown type."""
    if (generic := get_origin(kind)) is not None:
        return _GENERICS[generic](*get_args(kind)) if generic in _GENERICS else None
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _of_choices({each.value: each for each in kind})
    return _CLASSES.get(kind)


def _of_choices(choices: Mapping[Any, Any]) -> _Reader | None:
    """Return a reader of choices by their JSON values; None if one is neither text nor a whole number."""
    is_known = all(type(value) in (str, int) for value in choices)
    return (partial(_one_of, choices), {"enum": list(choices)}) if is_known else None


def _of_union(*kinds: Any) -> _Reader | None:
    several = [each for each in kinds if each is not NoneType]
    inner = _reader_of(several[0]) if len(several) == 1 else None
    return inner and (partial(_optional, inner[0]), {"anyOf": [inner[1], {"type": "null"}]})


def _of_list(kind: Any) -> _Reader | None:
    inner = _reader_of(kind)
    return inner and (partial(_items, inner[0]), {"type": "array", "items": inner[1]})


def _of_object(name: Any, kind: Any) -> _Reader | None:
    inner = _reader_of(kind) if name is str else None
    return inner and (partial(_named, inner[0]), {"type": "object", "additionalProperties": inner[1]})


def _as_it_is(value: Any) -> Any:
    return value


def _of_type(kind: type, what: str, value: Any) -> Any:
    if type(value) is not kind:  # Not isinstance: True is an int there.
        raise ValueError(f"must be {what}")
    return value


def _float(value: Any) -> float:
    # JSON does not distinguish 1 from 1.0, so a whole number is accepted; bool is excluded, a subclass of int.
    if type(value) not in (int, float):
        raise ValueError("must be a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError("must be a finite number")
    return number


def _from_text(of: Callable[[str], Any], what: str, value: Any) -> Any:
    try:
        return of(_of_type(str, what, value))
    except (ValueError, InvalidOperation):
        raise ValueError(f"must be {what}") from None


def _duration(text: str) -> timedelta:
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError
    sign, days, hours, minutes, seconds, fraction = found.groups(default="0")
    try:
        length = timedelta(
            days=int(days),
            hours=int(hours),
            minutes=int(minutes),
            seconds=int(seconds),
            microseconds=int(fraction.ljust(6, "0")),
        )
    except OverflowError:
        raise ValueError from None
    return -length if sign == "-" else length


def _decimal(value: Any) -> Decimal:
    return Decimal(value) if type(value) is int else _from_text(Decimal, "a decimal number as text", value)


def _one_of(values: Mapping[Any, Any], value: Any) -> Any:
    found = values.get(value) if type(value) in (str, int) else None
    if found is None:
        raise ValueError(f"must be one of {', '.join(map(str, values))}")
    return found


def _optional(read: Read, value: Any) -> Any:
    return None if value is None else read(value)


def _items(read: Read, value: Any) -> list[Any]:
    return [read(each) for each in _of_type(list, "a list", value)]


def _named(read: Read, value: Any) -> dict[str, Any]:
    return {name: read(each) for name, each in _of_type(dict, "an object", value).items()}


_CLASSES: Final[Mapping[Any, _Reader]] = {
    Any: (_as_it_is, {}),
    int: (partial(_of_type, int, "a whole number"), {"type": "integer"}),
    float: (_float, {"type": "number"}),
    str: (partial(_of_type, str, "a text"), {"type": "string"}),
    bool: (partial(_of_type, bool, "true or false"), {"type": "boolean"}),
    list: (partial(_of_type, list, "a list"), {"type": "array"}),
    dict: (partial(_of_type, dict, "an object"), {"type": "object"}),
    UUID: (partial(_from_text, UUID, "a UUID"), {"type": "string", "format": "uuid"}),
    Decimal: (_decimal, {"type": "string", "format": "decimal"}),
    datetime: (
        partial(_from_text, datetime.fromisoformat, "a date with a time"),
        {"type": "string", "format": "date-time"},
    ),
    date: (partial(_from_text, date.fromisoformat, "a date"), {"type": "string", "format": "date"}),
    time: (partial(_from_text, time.fromisoformat, "a time of day"), {"type": "string", "format": "time"}),
    timedelta: (
        partial(_from_text, _duration, 'a duration such as "PT90S"'),
        {"type": "string", "format": "duration"},
    ),
}
_GENERICS: Final[Mapping[Any, Callable[..., _Reader | None]]] = {
    **dict.fromkeys((Annotated, Required, NotRequired), lambda kind, *_: _reader_of(kind)),
    Literal: lambda *values: _of_choices({each: each for each in values}),
    Union: _of_union,
    UnionType: _of_union,
    list: _of_list,
    Sequence: _of_list,
    dict: _of_object,
    Mapping: _of_object,
}
