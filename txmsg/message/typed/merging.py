"""Merges several schemas into one: those of `allOf`, and keywords beside `$ref` or a choice. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any, Final

from txmsg.message.typed.codecs import Schema

LOWER_BOUNDS: Final = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
UPPER_BOUNDS: Final = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
CHOICES: Final = ("anyOf", "oneOf")
_NOTES: Final = frozenset(
    {"$comment", "$defs", "$id", "$schema", "default", "deprecated", "description", "discriminator", "examples"}
    | {"readOnly", "title", "writeOnly"}
)
"""Keywords that do not constrain values, or repeat the choices."""
_NEVER: Final[Schema] = {"enum": []}


class Resolving:
    """The parts of one whole schema, with references resolved. Each part gives the same objects each time.

    So a comparison notices by identity that a reference leads back to where it was.
    """

    def __init__(self, whole: Schema) -> None:
        self._whole = whole
        self._known: dict[int, tuple[Any, list[Schema]]] = {}
        """Parts with their choices, by `id`. The part is kept, so that its id is not reused."""

    def choices(self, part: Any) -> list[Schema]:
        """Return the schemas of which a value has to match one; none is a choice itself, or of several types."""
        if id(part) not in self._known:
            self._known[id(part)] = part, self._choices(part)
        return self._known[id(part)][1]

    def _choices(self, part: Any) -> list[Schema]:
        part = self._flat(part)
        for word in CHOICES:
            if word in part:
                beside = {each: value for each, value in part.items() if each != word and each not in _NOTES}
                inner = part[word] if not beside else [{"allOf": [choice, beside]} for choice in part[word]]
                return [each for choice in inner for each in self.choices(choice)]
        if isinstance(part.get("type"), list):
            return [{**part, "type": each} for each in part["type"]]
        return [part]

    def _flat(self, part: Any) -> Schema:
        """Return the part without `$ref` and `allOf`: itself if it has none; the referred one if nothing stands beside
        it.
        """
        if isinstance(part, bool):
            return {} if part else _NEVER
        parts = [self._flat(self._referred(part["$ref"]))] if "$ref" in part else []
        parts += map(self._flat, part.get("allOf", ()))
        if not parts:
            whole: Schema = part
            return whole
        own = {word: value for word, value in part.items() if word not in ("$ref", "allOf") and word not in _NOTES}
        return merged([*parts, own] if own else parts)

    def _referred(self, reference: str) -> Any:
        return self._whole if reference == "#" else self._whole["$defs"][reference.rpartition("/")[2]]


def merged(parts: Iterable[Schema]) -> Schema:
    """Return a schema of the values that match all of these. The parts have neither `$ref` nor `allOf`."""
    first, *others = parts
    if not others:
        return first
    whole = dict(first)
    for part in others:
        for word, value in part.items():
            whole[word] = value if word not in whole else _both(word, whole[word], value)
    return whole


def _both(word: str, one: Any, other: Any) -> Any:
    """Return the value of a keyword that constrains as both values do."""
    if one == other or word in _NOTES:
        return one
    both = _OF_BOTH.get(word)
    return f"{one} and {other}" if both is None else both(one, other)  # such as patterns: unequal to all but itself


def _all(parts: list[Any]) -> Any:
    if False in parts:
        return False
    return parts[0] if len(parts) == 1 else {"allOf": parts}


def _type_of_both(one: str | list[str], other: str | list[str]) -> list[str]:
    """Return the types that both allow; an integer is a number."""
    first, second = ([each] if isinstance(each, str) else each for each in (one, other))
    kinds = [kind for kind in first if kind in second or (kind == "integer" and "number" in second)]
    return kinds + [kind for kind in second if kind == "integer" and "number" in first and kind not in kinds]


def multiple_of_both(one: float, other: float) -> float:
    """Return the larger divisor if it is a multiple of the other; else their product, a common multiple."""
    for each, divisor in ((one, other), (other, one)):
        if is_multiple(each, divisor):
            return each
    return one * other


def is_multiple(value: float, of: float) -> bool:
    """Return True if `value` is a multiple of `of` by their decimal digits: 0.3 is three times 0.1."""
    return (Fraction(str(value)) / Fraction(str(of))).denominator == 1


def _fields_of_both(one: Schema, other: Schema) -> Schema:
    return {name: _all([part[name] for part in (one, other) if name in part]) for name in {**one, **other}}


_OF_BOTH: Final[dict[str, Callable[[Any, Any], Any]]] = {
    **dict.fromkeys(LOWER_BOUNDS, max),
    **dict.fromkeys(UPPER_BOUNDS, min),
    **dict.fromkeys(("properties", "patternProperties"), _fields_of_both),
    **dict.fromkeys(("items", "additionalProperties", "propertyNames"), lambda one, other: _all([one, other])),
    **dict.fromkeys(CHOICES, lambda one, other: [_all([first, second]) for first in one for second in other]),
    "required": lambda one, other: list(dict.fromkeys([*one, *other])),
    "enum": lambda one, other: [value for value in one if value in other],
    "type": _type_of_both,
    "multipleOf": multiple_of_both,
}
