"""Whether those who read by one schema can read what was sent by another. Pure.

Schemas are those that models have: JSON Schema with local references. Words that no model says, such as `not` or `if`,
are not compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import gt, lt
from typing import Any, Final

from txmsg.typed.codecs import Schema

_LOWER_BOUNDS: Final = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_UPPER_BOUNDS: Final = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
_SAME: Final = ("pattern", "format", "multipleOf", "uniqueItems", "contentEncoding")
"""What values must be like: any other value of these is another demand."""
_WHOLE: Final = "the payload"


def not_read(sent: Schema, read: Schema, *, reads_all: bool) -> list[str]:
    """What readers by the one schema may refuse in what was sent by the other, each with the field; none if nothing.

    reads_all: a field that is sent and that readers do not have is one, too.
    """
    return list(dict.fromkeys(_Comparison(sent, read, reads_all).of(sent, read, "")))


class _Comparison:
    """Of two schemas whole, to which their parts refer."""

    def __init__(self, sent: Schema, read: Schema, reads_all: bool) -> None:
        self._sent = sent
        self._read = read
        self._reads_all = reads_all
        self._under_way: set[tuple[int, int]] = set()
        """Pairs of schemas, by `id`: references in them, also in their choices, may lead back to them."""

    def of(self, sent: Any, read: Any, field: str) -> Iterator[str]:
        """The problems of a part, which is that of this field."""
        readable = _choices(read, self._read)
        for each in _choices(sent, self._sent):
            found = [list(self._of_one(each, other, field)) for other in readable if _takes(other, each)]
            if not found:
                kinds = " or ".join(dict.fromkeys(map(_kind, readable)))
                yield f"{field or _WHOLE} is sent as {_kind(each)} and read as {kinds}"
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
        fields, known = sent.get("properties", {}), read.get("properties", {})
        others_sent, others_read = sent.get("additionalProperties", True), read.get("additionalProperties", True)
        for name, part in fields.items():
            path = f"{field}.{name}" if field else name
            if name in known:
                yield from self.of(part, known[name], path)
            elif isinstance(others_read, dict):
                yield from self.of(part, others_read, path)
            elif self._reads_all or others_read is False:
                yield f"{path} is sent and not read"
        for name in read.get("required", ()):
            if name not in sent.get("required", ()):
                path = f"{field}.{name}" if field else name
                always = "always " if name in fields else ""
                yield f"{path} is required and not {always}sent"
        if isinstance(others_sent, dict) and isinstance(others_read, dict):
            yield from self.of(others_sent, others_read, f"{field}.*" if field else "*")
        elif others_sent is not False and (others_read is False or (isinstance(others_read, dict) and not fields)):
            yield f"other fields of {field or _WHOLE} may be sent and are refused"

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


def _reference(part: Any) -> str:
    return str(part.get("$ref", "")) if isinstance(part, dict) else ""


def _resolved(part: Any, root: Schema) -> Schema:
    if part is True:
        return {}
    while reference := _reference(part):
        part = root if reference == "#" else root["$defs"][reference.rpartition("/")[2]]
    resolved: Schema = part
    return resolved


def _choices(part: Any, root: Schema) -> list[Schema]:
    """The schemas of which a value has to match one: none is a choice itself, or of several types."""
    part = _resolved(part, root)
    for word in ("anyOf", "oneOf"):
        if word in part:
            return [each for choice in part[word] for each in _choices(choice, root)]
    if isinstance(part.get("type"), list):
        return [{**part, "type": each} for each in part["type"]]
    return [part]


def _kind(part: Schema) -> str:
    if "type" in part:
        return str(part["type"])
    values = _values(part)
    return "anything" if values is None else " or ".join(map(repr, values))


def _takes(read: Schema, sent: Schema) -> bool:
    """Whether a value of the type that is sent may be one that is read."""
    before, after = _type(sent), _type(read)
    return after in (None, before) or (before == "integer" and after == "number")


def _type(part: Schema) -> str | None:
    if "type" in part:
        return str(part["type"])
    kinds = {_TYPES.get(type(value)) for value in _values(part) or ()}
    return kinds.pop() if len(kinds) == 1 else None


_TYPES: Final = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


def _values(part: Schema) -> list[Any] | None:
    """Those that are allowed, if they are listed."""
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
    for words, further, none in ((_LOWER_BOUNDS, gt, -_ENDLESS), (_UPPER_BOUNDS, lt, _ENDLESS)):
        for word in words:
            if word in read and further(read[word], sent.get(word, none)):
                yield f"{field} is read with a {word} of {read[word]} only"


_ENDLESS: Final = float("inf")
