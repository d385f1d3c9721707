"""Parses RocketMQ's SQL filters, conditions over the properties of a message; `sql92_logic` evaluates them. Pure.

    condition  = term { OR term }
    term       = factor { AND factor }
    factor     = NOT factor | predicate
    predicate  = operand [ comparison ]
    comparison = ( "=" | "<>" | ">" | ">=" | "<" | "<=" ) operand
               | IS [ NOT ] NULL
               | [ NOT ] BETWEEN operand AND operand
               | [ NOT ] IN "(" string { "," string } ")"
               | [ NOT ] ( CONTAINS | STARTSWITH | ENDSWITH ) string
    operand    = property | string | [ "+" | "-" ] number | TRUE | FALSE | "(" condition ")"

The cost of a filter is bounded by its length and depth and by the size of a message's properties: each part is
evaluated at most once per message, and there are no patterns. CONTAINS takes up to the product of the sizes of both
strings, so their number is limited.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Final, TypeVar

from txmsg.rocketmq.sql92_logic import (
    ORDERS,
    Condition,
    Constant,
    Properties,
    Property,
    Value,
    all_of,
    always,
    any_of,
    equal,
    is_there,
    negated,
    number_of,
    of_text,
    ordered,
)
from txmsg.rocketmq.sql92_tokens import END, NAME, NUMBER, STRING, FilterSyntaxError, Token, tokens_of

__all__ = ["DEPTH_MAX", "SEARCHES_MAX", "Filter", "FilterSyntaxError", "parse_filter"]

DEPTH_MAX: Final = 50
"""Maximum depth of nested parentheses and NOTs."""
SEARCHES_MAX: Final = 16
"""Maximum CONTAINS in a filter: one may take 2 ms per message."""
_KEPT_MAX: Final = 256

T = TypeVar("T")

_TEXTS: Final[Mapping[str, Callable[[str, str], bool]]] = {  # the part of a text comes first
    "CONTAINS": lambda part, text: part in text,
    "STARTSWITH": lambda part, text: text.startswith(part),
    "ENDSWITH": lambda part, text: text.endswith(part),
}


@dataclass(frozen=True, slots=True)
class Filter:
    """A parsed filter."""

    condition: Condition

    def matches(self, properties: Properties) -> bool:
        """Return True if the filter accepts a message with these properties; unknown counts as False.
        Raises nothing.
        """
        return self.condition(properties) is True


@lru_cache(_KEPT_MAX)
def parse_filter(text: str) -> Filter:
    """Parse a client's filter. Raises FilterSyntaxError, which names the position."""
    return Filter(_Parser(text).whole())


class _Parser:
    """A recursive-descent parser over the tokens of one filter."""

    def __init__(self, text: str) -> None:
        self._tokens = tokens_of(text)
        self._next = 0
        self._depth = 0
        self._searches = 0

    def whole(self) -> Condition:
        """Parse the whole filter."""
        found = _as_condition(self._condition(), self._tokens[0])
        if self._token.kind != END:
            raise self._token.unexpected("AND, OR or the end")
        return found

    # ---- conditions. An operand that is alone stays one, so that `(a) > 5` is understood.

    def _condition(self) -> Value | Condition:
        return self._joined("OR", self._term, any_of)

    def _term(self) -> Value | Condition:
        return self._joined("AND", self._factor, all_of)

    def _joined(
        self, word: str, part: Callable[[], Value | Condition], join: Callable[[list[Condition]], Condition]
    ) -> Value | Condition:
        begin = self._token
        first = part()
        if self._token.kind != word:
            return first
        parts = [_as_condition(first, begin)]
        while self._take_token(word):
            begin = self._token
            parts.append(_as_condition(part(), begin))
        return join(parts)

    def _factor(self) -> Value | Condition:
        begin = self._token
        if self._take_token("NOT"):
            return negated(_as_condition(self._deeper(begin, self._factor), begin))
        return self._predicate()

    def _predicate(self) -> Value | Condition:
        begin, left = self._token, self._operand()
        sign = self._token
        if self._take_token("=") or self._take_token("<>"):
            same = equal(_value(left, begin), self._right())
            return same if sign.kind == "=" else negated(same)
        if sign.kind in ORDERS:
            self._next += 1
            return ordered(_number(left, begin), sign.kind, self._right_number())
        if self._take_token("IS"):
            is_not = self._take_token("NOT")
            self._expect("NULL")
            there = is_there(_name(left, begin))
            return there if is_not else negated(there)
        is_not = self._take_token("NOT")
        found = self._range_or_text(left, begin)
        if is_not and found is None:
            raise self._token.unexpected("BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH")
        if found is None:
            return left
        return negated(found) if is_not else found

    def _range_or_text(self, left: Value | Condition, begin: Token) -> Condition | None:
        """Return a predicate that NOT can precede, if there is one here."""
        sign = self._token
        if self._take_token("BETWEEN"):
            value, low = _number(left, begin), self._right_number()
            self._expect("AND")
            high = self._right_number()
            if isinstance(low, Constant) and isinstance(high, Constant) and not ordered(low, "<=", high)({}):
                raise sign.wrong("its first number is greater than its second one")
            return all_of([ordered(value, ">=", low), ordered(value, "<=", high)])
        if self._take_token("IN"):
            self._expect("(")
            texts = {self._string()}
            while self._take_token(","):
                texts.add(self._string())
            self._expect(")")
            return of_text(_name(left, begin), frozenset(texts).__contains__)
        if sign.kind in _TEXTS:
            self._next += 1
            self._searches += sign.kind == "CONTAINS"
            if self._searches > SEARCHES_MAX:
                raise sign.wrong(f"more than {SEARCHES_MAX} CONTAINS in a filter")
            return of_text(_name(left, begin), partial(_TEXTS[sign.kind], self._string()))
        return None

    # ---- operands

    def _operand(self) -> Value | Condition:
        token = self._token
        self._next += 1
        match token.kind:
            case "(":
                inside = self._deeper(token, self._condition)
                self._expect(")")
                return inside
            case "+" | "-":
                number = self._constant(NUMBER)
                return Constant(-_read_number(number) if token.kind == "-" else _read_number(number))
            case "TRUE" | "FALSE":
                return Constant(token.kind == "TRUE")
        if token.kind == NAME:
            return Property(token.text)
        if token.kind == STRING:
            return Constant(token.text)
        if token.kind == NUMBER:
            return Constant(_read_number(token))
        raise token.unexpected("a property, a constant or (")

    def _right(self) -> Value:
        begin = self._token
        return _value(self._operand(), begin)

    def _right_number(self) -> Value:
        begin = self._token
        return _number(self._operand(), begin)

    def _string(self) -> str:
        return self._constant(STRING).text

    def _constant(self, kind: str) -> Token:
        token = self._token
        self._expect(kind)
        return token

    # ---- tokens

    @property
    def _token(self) -> Token:
        return self._tokens[self._next]

    def _take_token(self, kind: str) -> bool:
        is_here = self._token.kind == kind
        self._next += is_here
        return is_here

    def _expect(self, kind: str) -> None:
        if not self._take_token(kind):
            raise self._token.unexpected(kind)

    def _deeper(self, at: Token, part: Callable[[], T]) -> T:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise at.wrong(f"more than {DEPTH_MAX} parentheses and NOTs within each other")
        found = part()
        self._depth -= 1
        return found


# ---- what an operand may stand for


def _value(operand: Value | Condition, at: Token) -> Value:
    if isinstance(operand, Property | Constant):
        return operand
    raise at.wrong("a condition begins here, and only properties and constants can be compared")


def _name(operand: Value | Condition, at: Token) -> str:
    if isinstance(operand, Property):
        return operand.name
    raise at.wrong("a property is expected on the left of IS, IN, CONTAINS, STARTSWITH and ENDSWITH")


def _number(operand: Value | Condition, at: Token) -> Value:
    value = _value(operand, at)
    if isinstance(value, Constant) and isinstance(value.value, str | bool):
        raise at.wrong("only numbers are greater or less than others")
    return value


def _as_condition(operand: Value | Condition, at: Token) -> Condition:
    if isinstance(operand, Property):
        return equal(operand, Constant(value=True))
    if not isinstance(operand, Constant):
        return operand
    if isinstance(operand.value, bool):
        return always(operand.value)
    raise at.wrong("a constant other than TRUE and FALSE is no condition: compare it")


def _read_number(token: Token) -> float:
    number = number_of(token.text)
    if number is None:
        raise token.wrong("the number is too large")
    return number
