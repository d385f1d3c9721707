"""Evaluates RocketMQ's SQL filters: comparisons of properties and constants, and SQL's three-valued logic. Pure.

Properties are strings. A property that is compared with a number is parsed as a number, and with TRUE or FALSE as a
boolean. If it cannot be parsed, or is missing, the comparison is unknown.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

Properties = Mapping[str, str]
Truth = bool | None
"""The result of a condition. None: unknown."""
Condition = Callable[[Properties], Truth]

ORDERS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_NUMBER_LENGTH_MAX: Final = 100
_INT64_MAX: Final = 2**63 - 1
_TRUTHS: Final = {"true": True, "false": False}
_TRUTH_LENGTH_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class Property:
    """A property of the message, by name."""

    name: str


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant of the filter."""

    value: str | float | bool


Value = Property | Constant


def number_of(text: str) -> float | None:
    """Return the number in a string, an int if it is a 64-bit integer; None if it is not a number, or too large."""
    if len(text) > _NUMBER_LENGTH_MAX or not _NUMBER.fullmatch(text):
        return None
    if text.lstrip("+-").isdecimal() and abs(whole := int(text)) <= _INT64_MAX:
        return whole
    number = float(text)
    return number if math.isfinite(number) else None


def always(truth: bool) -> Condition:
    """Return the condition TRUE or FALSE."""
    return lambda _: truth


def is_there(name: str) -> Condition:
    """Return a condition that is true if the message has the property."""
    return lambda properties: name in properties


def negated(condition: Condition) -> Condition:
    """Return the negation; unknown stays unknown."""

    def evaluate(properties: Properties) -> Truth:
        truth = condition(properties)
        return None if truth is None else not truth

    return evaluate


def any_of(conditions: Sequence[Condition]) -> Condition:
    """Return a condition that is true if one of these is, otherwise unknown if one of them is."""

    def evaluate(properties: Properties) -> Truth:
        result: Truth = False
        for condition in conditions:
            truth = condition(properties)
            if truth:
                return True
            if truth is None:
                result = None
        return result

    return evaluate


def all_of(conditions: Sequence[Condition]) -> Condition:
    """Return a condition that is false if one of these is, otherwise unknown if one of them is."""

    def evaluate(properties: Properties) -> Truth:
        result: Truth = True
        for condition in conditions:
            truth = condition(properties)
            if truth is False:
                return False
            if truth is None:
                result = None
        return result

    return evaluate


def equal(left: Value, right: Value) -> Condition:
    """Compare strings by characters; as numbers or booleans if one side is such a constant."""

    def evaluate(properties: Properties) -> Truth:
        one, other = _read(left, properties), _read(right, properties)
        if isinstance(one, str) and isinstance(other, str):
            return one == other
        as_kind = _truth if isinstance(one, bool) or isinstance(other, bool) else _number
        found, wanted = as_kind(one), as_kind(other)
        return None if found is None or wanted is None else found == wanted

    return evaluate


def ordered(left: Value, sign: str, right: Value) -> Condition:
    """Compare numbers."""
    holds = ORDERS[sign]

    def evaluate(properties: Properties) -> Truth:
        one, other = _number(_read(left, properties)), _number(_read(right, properties))
        return None if one is None or other is None else holds(one, other)

    return evaluate


def of_text(name: str, holds: Callable[[str], bool]) -> Condition:
    """Return a condition on the string of a property."""

    def evaluate(properties: Properties) -> Truth:
        text = properties.get(name)
        return None if text is None else holds(text)

    return evaluate


def _read(value: Value, properties: Properties) -> str | float | bool | None:
    return value.value if isinstance(value, Constant) else properties.get(value.name)


def _number(value: str | float | bool | None) -> float | None:
    if isinstance(value, str):
        return number_of(value)
    return None if isinstance(value, bool) else value


def _truth(value: str | float | bool | None) -> bool | None:
    if isinstance(value, str):
        return _TRUTHS.get(value.lower()) if len(value) <= _TRUTH_LENGTH_MAX else None
    return value if isinstance(value, bool) else None
