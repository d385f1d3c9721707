"""Values as text: JSON bodies, and keys. Knows no messages."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any, Final
from uuid import UUID

_INT_KEY_MAX: Final = 10**100

NOT_JSON: Final = (TypeError, ValueError, RecursionError)
"""The exceptions of `json_of` for a value that JSON cannot represent."""


def json_of(value: object) -> bytes:
    """JSON in UTF-8. UUID, Decimal, Path, datetime, date and time become strings, timedelta a duration of ISO 8601
    ("PT90S"), enums their values; dataclasses, pydantic models and msgspec structs become objects. NaN and infinities
    are refused.
    """
    return _ENCODER.encode(value).encode()


def why_not_json(exc: Exception) -> str:
    """Return the reason of an exception of `json_of`, in words for the caller."""
    if isinstance(exc, UnicodeEncodeError):
        return f"it holds the lone surrogate {exc.object[exc.start]!r}"
    if isinstance(exc, RecursionError):
        return "it is nested too deeply"
    return str(exc).removesuffix("; use sys.set_int_max_str_digits() to increase the limit")


def key_of(value: object) -> str | None:
    """Return the text of a key; None for a value that has no short one."""
    if isinstance(value, str):
        return value
    if isinstance(value, UUID | Decimal) or (isinstance(value, int) and abs(value) < _INT_KEY_MAX):
        return str(value)
    if isinstance(value, date | time):
        return value.isoformat()
    return None


def named(value: object) -> str:
    """Return the name of a value's type, with its article."""
    return named_type(type(value))


def named_type(kind: type) -> str:
    """Return the name of a type, with its article."""
    name = kind.__name__
    return f"{'an' if name[0] in 'aeiouAEIO' else 'a'} {name}"


def _plain(value: Any) -> object:
    match value:
        case UUID() | Decimal() | PurePath():
            return str(value)
        case datetime() | date() | time():
            return value.isoformat()
        case timedelta():
            return _duration_of(value)
        case Enum():
            return value.value
    if not isinstance(value, type):
        if hasattr(value, "model_dump"):  # a model of pydantic
            return value.model_dump(mode="json", by_alias=True)
        if (names := _field_names(value)) is not None:
            return {name: getattr(value, name) for name in names}
    raise TypeError(f"there is no JSON for {type(value).__name__}")


def _duration_of(value: timedelta) -> str:
    seconds, microseconds = divmod(abs(value) // timedelta(microseconds=1), 1_000_000)
    fraction = f".{microseconds:06}".rstrip("0") if microseconds else ""
    return f"{'-' if value < timedelta() else ''}PT{seconds}{fraction}S"


def _field_names(value: Any) -> Iterable[str] | None:
    """Return the names of the fields of a dataclass or a msgspec struct; None for other values."""
    if dataclasses.is_dataclass(value):
        return [field.name for field in dataclasses.fields(value)]
    names: Iterable[str] | None = getattr(value, "__struct_fields__", None)
    return names


_ENCODER: Final = json.JSONEncoder(default=_plain, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
