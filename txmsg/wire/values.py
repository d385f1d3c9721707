"""Values of administration as JSON: frozen dataclasses, by the names of their fields. docs/protocol.md has the rules.

A field that has its default is left out, and a missing one gets it, so that releases that lack a field understand each
other. A reply may have fields that its reader does not know. A request may not: what they ask for would not happen, or
would happen to more than was meant. A field with `repr=False` is a secret: no error shows what it has.
"""

from __future__ import annotations

import json
import sys
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints
from uuid import UUID

from txmsg.errors import InvalidName, MisuseError, ProtocolError, shown

ValueT = TypeVar("ValueT")

SIZE_BYTES_MAX: Final = 1024 * 1024
"""Size of a request in JSON, at most: reading it takes up to 50 times as much memory."""


class NumberRange(NamedTuple):
    """The valid numbers of a field, as `Annotated[int, NumberRange(0, 9)]`."""

    least: int
    most: int


_INT64: Final = NumberRange(-(2**63), 2**63 - 1)
Natural = Annotated[int, NumberRange(0, 2**63 - 1)]
Natural32 = Annotated[int, NumberRange(0, 2**31 - 1)]


class _InvalidField(Exception):
    """A value that its field cannot have. path: the steps to it, the last one first."""

    def __init__(self, value: object, reason: str, kind: type[ProtocolError | InvalidName] = ProtocolError) -> None:
        self.value, self.reason, self.kind = value, reason, kind
        self.path: list[str] = []

    def __str__(self) -> str:
        return f"{self.where}={_shown(self.value)} {self.reason}".removeprefix("=")

    @property
    def where(self) -> str:
        return ".".join(reversed(self.path))


def _shown(value: object) -> str:
    """Return a value for an error. The contents of an object or a list may be a secret."""
    if isinstance(value, dict) and value:
        return f"{{{', '.join(map(shown, value))}}}"
    return f"[{len(value)} items]" if isinstance(value, list) and value else shown(value)


def packed(value: object) -> bytes:
    """Return a dataclass as JSON."""
    return json.dumps(value, default=_plain, ensure_ascii=False, separators=(",", ":")).encode()


def check(value: object) -> None:
    """Raise MisuseError for a dataclass with a value that its field cannot have, as a user may have given it."""
    try:
        # By the server's own reader, so a client refuses exactly the values that the server would: there is no second
        # list of rules to keep equal.
        _read(type(value), json.loads(packed(value)), strict=True)
    except _InvalidField as exc:
        raise MisuseError(f"{exc.where}={_shown(exc.value)} is not possible: it {exc.reason}") from None
    except UnicodeEncodeError as exc:
        raise MisuseError(f"{shown(exc.object)} contains half of a surrogate pair, which is not a character") from None


def unpacked(kind: type[ValueT], data: bytes, *, strict: bool) -> ValueT:
    """Return the dataclass in JSON; the inverse of `packed`. strict: refuse unknown fields. Raises ProtocolError,
    InvalidName for a NUL."""
    try:
        value: ValueT = _read(kind, json.loads(data or b"{}"), strict)
    except (ValueError, RecursionError) as exc:
        raise ProtocolError(f"{len(data)} bytes are not a {kind.__name__} in JSON: {exc}") from exc
    except _InvalidField as exc:
        raise exc.kind(str(exc)) from None
    return value


def _plain(value: Any) -> object:
    """Return the JSON form of a value that the json module does not know."""
    match value:
        case datetime():
            return (value.astimezone(UTC) if value.tzinfo else value).isoformat()
        case UUID():
            return str(value)
        case bytes():
            return b64encode(value).decode()
        case Mapping():
            return dict(value)
        case frozenset():
            return sorted(value)
    # Defaults are left out, so an older release is not sent fields that it lacks unless a user has set them: its strict
    # reader would refuse the whole request.
    given = ((name, default, getattr(value, name)) for name, (_, default, _) in _fields_of(value.__class__).items())
    return {name: each for name, default, each in given if each != default}


@cache  # bounded by the values that administration has
def _fields_of(kind: Any) -> Mapping[str, tuple[Any, Any, bool]]:
    """Return the type and the default of each field, and if it is a secret."""
    hints = get_type_hints(kind, include_extras=True)
    return {each.name: (hints[each.name], _default_of(each), not each.repr) for each in fields(kind)}


def _default_of(field: Field[Any]) -> object:
    return field.default if field.default_factory is MISSING else field.default_factory()


def _read(kind: Any, value: Any, strict: bool, bounds: NumberRange = _INT64) -> Any:
    """Return a value of JSON as this type. Raises _InvalidField."""
    if kind is int:
        is_in = type(value) is int and bounds.least <= value <= bounds.most
        return _check(is_in, value, f"must be a whole number from {bounds.least} to {bounds.most}")
    if kind is str and not strict:
        return _check(isinstance(value, str), value, "must be a text")  # what is shown may have come from elsewhere
    if kind in _SCALARS:
        return _SCALARS[kind](value)
    if (generic := get_origin(kind)) is not None:
        return _GENERICS[generic](get_args(kind), value, strict, bounds)
    return _one_of(kind, value, strict) if issubclass(kind, StrEnum) else _dataclass(kind, value, strict)


def _annotated(arguments: Sequence[Any], value: Any, strict: bool, bounds: NumberRange) -> Any:
    return _read(
        arguments[0], value, strict, next((each for each in arguments if isinstance(each, NumberRange)), bounds)
    )


def _optional(arguments: Sequence[Any], value: Any, strict: bool, bounds: NumberRange) -> Any:
    (kind,) = (each for each in arguments if each is not NoneType)
    return None if value is None else _read(kind, value, strict, bounds)


def _items(arguments: Sequence[Any], value: Any, strict: bool, bounds: NumberRange) -> list[Any]:
    _check(isinstance(value, list), value, "must be a list")
    return [_within(str(n), arguments[0], each, strict, bounds) for n, each in enumerate(value)]


def _named(arguments: Sequence[Any], value: Any, strict: bool, bounds: NumberRange) -> dict[str, Any]:
    _check(isinstance(value, dict), value, "must be an object")
    return {_read(str, name, strict): _within(name, arguments[1], each, strict, bounds) for name, each in value.items()}


def _dataclass(kind: type, value: Any, strict: bool) -> Any:
    known = _fields_of(kind)
    _check(isinstance(value, dict), value, f"must be an object, a {kind.__name__}")
    for name, (_, default, _) in known.items():
        _check(name in value or default is not MISSING, value, f"lacks {name}")
    # A request only. An ignored field of a request would be a condition or an option that silently does not apply.
    if strict and (unknown := value.keys() - known.keys()):
        raise _InvalidField(value, f"has {', '.join(sorted(unknown))}, which this release does not know: upgrade it")
    given = ((name, *known[name], each) for name, each in value.items() if name in known)
    return kind(**{name: _within(name, of, each, strict, is_secret=secret) for name, of, _, secret, each in given})


def _within(step: str, *arguments: Any, is_secret: bool = False) -> Any:
    try:
        return _read(*arguments)
    except _InvalidField as exc:
        # The value is replaced on its way out of the recursion: errors go into logs, and a secret field may hold a list
        # or an object whose inner reader does not know that.
        if is_secret:
            exc.value = "(a secret)"
        exc.path.append(step)
        raise


def _check(holds: bool, value: Any, reason: str) -> Any:
    if not holds:
        raise _InvalidField(value, reason)
    return value


def _one_of(choices: Iterable[str], value: Any, strict: bool) -> Any:
    found = next((each for each in choices if each == value), None)
    # Kept as a plain text: an old console has to show the states of a newer broker, not fail on them.
    if found is None and isinstance(value, str) and not strict:
        return _text(value)  # a later release may have more
    return found if found is not None else _check(False, value, f"must be one of {', '.join(choices)}")


def _text(value: Any) -> str:
    text: str = _check(isinstance(value, str), value, "must be a text")
    if "\0" in text:
        raise _InvalidField(text, "contains a NUL character, which no stored text has: remove it", InvalidName)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _InvalidField(text, "contains half of a surrogate pair, which is not a character") from None
    return text


def _time(value: Any) -> datetime:
    try:
        moment = datetime.fromisoformat(_text(value))
        if moment.tzinfo is not None:
            return moment.astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise _InvalidField(value, "must be a time with its zone, as 2026-05-01T10:00:00Z")


def _uuid(value: Any) -> UUID:
    try:
        return UUID(_text(value))
    except ValueError:
        raise _InvalidField(value, "must be a UUID") from None


def _bytes(value: Any) -> bytes:
    try:
        return b64decode(_text(value), validate=True)
    except ValueError:
        raise _InvalidField(value, "must be base64") from None


_SCALARS: Final[Mapping[Any, Any]] = {
    str: _text,
    float: lambda value: _check(
        type(value) in (int, float) and abs(value) <= sys.float_info.max, value, "must be a finite number"
    ),
    bool: lambda value: _check(isinstance(value, bool), value, "must be true or false"),
    datetime: _time,
    UUID: _uuid,
    bytes: _bytes,
    Any: lambda value: value,
}
_GENERICS: Final[Mapping[Any, Any]] = {
    Annotated: _annotated,
    Union: _optional,
    UnionType: _optional,
    Literal: lambda arguments, value, strict, bounds: _one_of(arguments, value, strict),
    Sequence: _items,
    frozenset: lambda *given: frozenset(_items(*given)),
    Mapping: _named,
}
