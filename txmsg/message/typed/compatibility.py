"""Compares two schemas: finds messages sent by one that readers of the other refuse. Pure.

Schemas are those of models: JSON Schema with local references. Keywords that models do not produce, such as `not` or
`if`, are not compared. Fields that match no pattern of `patternProperties` are refused, as models do, unless
`additionalProperties` allows them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from math import ceil, floor, inf
from typing import Any, Final

from txmsg.message.typed.codecs import Schema
from txmsg.message.typed.merging import LOWER_BOUNDS, UPPER_BOUNDS, Resolving, is_multiple

_SAME: Final = ("pattern", "format", "uniqueItems", "contentEncoding")
"""Keywords whose values are compared for equality: a different value is a different demand."""
_WHOLE: Final = "the payload"


def not_read(sent: Schema, read: Schema, *, reads_all: bool) -> list[str]:
    """Return the problems that readers may have with sent messages, each with its field; none if compatible.

    reads_all: a field that is sent and unknown to readers is a problem, too.
    """
    return list(dict.fromkeys(_SchemaComparison(sent, read, reads_all).of(sent, read, "")))


class _SchemaComparison:
    """A comparison of two whole schemas, to which references in their parts lead."""

    def __init__(self, sent: Schema, read: Schema, reads_all: bool) -> None:
        self._sent = Resolving(sent)
        self._read = Resolving(read)
        self._reads_all = reads_all
        self._under_way: set[tuple[int, int]] = set()
        """Pairs of schemas being compared, by `id`: references in them, also in their choices, may lead back to them.
        """

    def of(self, sent: Any, read: Any, field: str) -> Iterator[str]:
        """Yield the problems of a part, the schema of this field."""
        if len(self._under_way) > _DEPTH_MAX:
            return
        readable = self._read.choices(read)
        for each in self._sent.choices(sent):
            found = [list(self._of_one(each, other, field)) for other in readable if _takes(other, each)]
            if not found:
                kinds = " or ".join(dict.fromkeys(map(_kind, readable)))
                yield f"{field or _WHOLE} is sent as {_kind(each)} and read as {kinds}"
            # A value has to match one of the reader's choices. If none is free of problems, those of the nearest are
            # reported.
            elif all(found):
                yield from min(found, key=len)

    def _of_one(self, sent: Schema, read: Schema, field: str) -> Iterator[str]:
        pair = (id(sent), id(read))
        if pair in self._under_way:
            return
        self._under_way.add(pair)
        yield from _narrowed(sent, read, field or _WHOLE)
        yield from self._of_fields(sent, read, field)
        yield from self._of_items(sent, read, field)
        self._under_way.discard(pair)

    def _of_fields(self, sent: Schema, read: Schema, field: str) -> Iterator[str]:
        yield from self._of_named(sent, read, field)
        yield from self._of_patterns(sent, read, field)
        yield from self._of_required(sent, read, field)
        others_sent, others_read = _others(sent), _others(read)
        if isinstance(others_sent, dict) and isinstance(others_read, dict):
            yield from self.of(others_sent, others_read, _others_of(field))
        elif others_sent is not False and (
            others_read is False or (isinstance(others_read, dict) and not sent.get("properties"))
        ):
            yield f"other fields of {field or _WHOLE} may be sent and are refused"
        if names := read.get("propertyNames"):
            yield from self._of_names(sent, names, field)

    def _of_named(self, sent: Schema, read: Schema, field: str) -> Iterator[str]:
        others = _others(read)
        for name, part in sent.get("properties", {}).items():
            path = f"{field}.{name}" if field else name
            readers = _readers(read, name) or ([others] if isinstance(others, dict) else [])
            for reader in readers:
                yield from self.of(part, reader, path)
            if not readers and (self._reads_all or others is False):
                yield f"{path} is sent and not read"

    def _of_patterns(self, sent: Schema, read: Schema, field: str) -> Iterator[str]:
        patterns, known = sent.get("patternProperties", {}), read.get("patternProperties", {})
        for pattern, part in patterns.items():
            reader = known.get(pattern, _others(read))
            if reader is False:
                yield f"fields of {field or _WHOLE} that match {pattern} may be sent and are refused"
            elif isinstance(reader, dict):
                yield from self.of(part, reader, _others_of(field))
        if isinstance(others := _others(sent), dict):
            for pattern, reader in known.items():
                if pattern not in patterns:
                    yield from self.of(others, reader, _others_of(field))

    def _of_required(self, sent: Schema, read: Schema, field: str) -> Iterator[str]:
        for name in read.get("required", ()):
            if name not in sent.get("required", ()):
                path = f"{field}.{name}" if field else name
                always = "always " if name in sent.get("properties", {}) else ""
                yield f"{path} is required and not {always}sent"

    def _of_names(self, sent: Schema, read_names: Schema, field: str) -> Iterator[str]:
        """Compare rules for the names of fields, as texts: models have them where they have no fields of their own."""
        names = {**sent["propertyNames"], "type": "string"} if "propertyNames" in sent else {"type": "string"}
        yield from self.of(names, {**read_names, "type": "string"}, f"a name of a field of {field or _WHOLE}")

    def _of_items(self, sent: Schema, read: Schema, field: str) -> Iterator[str]:
        firsts_sent, firsts_read = sent.get("prefixItems", ()), read.get("prefixItems", ())
        others_sent, others_read = sent.get("items", not firsts_sent), read.get("items", not firsts_read)
        for n in range(max(len(firsts_sent), len(firsts_read))):
            before = firsts_sent[n] if n < len(firsts_sent) else others_sent
            after = firsts_read[n] if n < len(firsts_read) else others_read
            if before is False or after is False:
                yield f"{field or _WHOLE} has another number of items"
            else:
                yield from self.of(before, after, f"{field}[]")
        if others_sent is not False and isinstance(others_read, dict):
            yield from self.of(others_sent, others_read, f"{field}[]")


def _others(part: Schema) -> Any:
    """Return the rule for fields that the part does not name: a schema, True for anything, or False."""
    return part.get("additionalProperties", "patternProperties" not in part)


def _others_of(field: str) -> str:
    return f"{field}.*" if field else "*"


def _readers(read: Schema, name: str) -> Sequence[Any]:
    """Return the schemas by which a field of this name is read; none if it is not named."""
    named = [read["properties"][name]] if name in read.get("properties", {}) else []
    return named + [part for pattern, part in read.get("patternProperties", {}).items() if re.search(pattern, name)]


def _kind(part: Schema) -> str:
    if "type" in part:
        return str(part["type"])
    values = _values(part)
    return "anything" if values is None else " or ".join(map(repr, values))


def _takes(read: Schema, sent: Schema) -> bool:
    """Return True if values of the sent type can be values of the read type."""
    before, after = _type(sent), _type(read)
    return after in (None, before) or (before == "integer" and after == "number")


def _type(part: Schema) -> str | None:
    if "type" in part:
        return str(part["type"])
    kinds = {_TYPES.get(type(value)) for value in _values(part) or ()}
    return kinds.pop() if len(kinds) == 1 else None


_TYPES: Final = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


def _values(part: Schema) -> list[Any] | None:
    """Return the allowed values, if the schema lists them."""
    return [part["const"]] if "const" in part else part.get("enum")


def _narrowed(sent: Schema, read: Schema, field: str) -> Iterator[str]:
    allowed, possible = _values(read), _values(sent)
    if allowed is not None:
        if possible is None:
            yield f"{field} may be any {_kind(sent)}, and is read as {' or '.join(map(repr, allowed))} only"
        elif refused := [value for value in possible if value not in allowed]:
            yield f"{field} may be {' or '.join(map(repr, refused))}, which is not read"
    for word in _SAME:
        if word in read and read[word] != sent.get(word):
            was = f", not with {sent[word]}" if word in sent else ""
            yield f"{field} is read with the {word} {read[word]} only{was}"
    if "multipleOf" in read and not _is_multiple(sent, read["multipleOf"]):
        was = f", not of {sent['multipleOf']}" if "multipleOf" in sent else ""
        yield f"{field} is read as a multiple of {read['multipleOf']} only{was}"
    for words, is_lower in ((LOWER_BOUNDS, True), (UPPER_BOUNDS, False)):
        for word in words:
            if word in read and _is_further(sent, read, word, is_lower=is_lower):
                yield f"{field} is read with a {word} of {read[word]} only"


def _is_multiple(sent: Schema, of: float) -> bool:
    step = sent.get("multipleOf", 1 if _type(sent) == "integer" else None)
    return step is not None and is_multiple(step, of)


_EXCLUSIVE: Final = {"exclusiveMinimum": "minimum", "exclusiveMaximum": "maximum"}


def _is_further(sent: Schema, read: Schema, word: str, *, is_lower: bool) -> bool:
    """Return True if values may be sent beyond the bound that this keyword sets for readers."""
    inclusive = _EXCLUSIVE.get(word, word)
    words = (word,) if inclusive not in _EXCLUSIVE.values() else (inclusive, f"exclusive{inclusive.capitalize()}")
    sign = 1 if is_lower else -1
    is_whole = _type(sent) == "integer"
    bounds = [_bound(sent[each], each, is_lower=is_lower, is_whole=is_whole) for each in words if each in sent]
    furthest = max(((sign * value, is_out) for value, is_out in bounds), default=(-inf, False))
    value, is_out = _bound(read[word], word, is_lower=is_lower, is_whole=is_whole)
    return (sign * value, is_out) > furthest


def _bound(value: float, word: str, *, is_lower: bool, is_whole: bool) -> tuple[float, bool]:
    """Return a bound, and True if it is itself excluded. For whole numbers never: above 4 means from 5 on."""
    if not is_whole:
        return value, word in _EXCLUSIVE
    if word in _EXCLUSIVE:
        return (floor(value) + 1 if is_lower else ceil(value) - 1), False
    return (ceil(value) if is_lower else floor(value)), False


_DEPTH_MAX: Final = 100
"""Nested parts that are compared: more than models have, and below Python's recursion limit."""
