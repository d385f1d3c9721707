"""Splits RocketMQ's SQL filters into keywords, constants and operators, each with its position. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

TEXT_LENGTH_MAX: Final = 8192
"""Maximum characters of a filter."""

END: Final = "the end"
NAME: Final = "a property"
NUMBER: Final = "a number"
STRING: Final = "a string in single quotes"
_WORDS: Final = frozenset(
    {
        *("AND", "OR", "NOT", "IS", "NULL", "TRUE", "FALSE"),
        *("BETWEEN", "IN", "CONTAINS", "STARTSWITH", "ENDSWITH"),
    }
)
_TOKEN: Final = re.compile(
    r"""[ \t\r\n\f]*(?:
        (?P<name>[A-Za-z_$][A-Za-z0-9_$]*)
      | (?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[lL])(?![A-Za-z0-9_$.])
      | '(?P<string>(?:[^']|'')*+)'
      | (?P<sign><>|<=|>=|[=<>(),+-])
      | (?P<end>\Z)
    )""",
    re.VERBOSE,
)
_SHOWN_LENGTH_MAX: Final = 40


class FilterSyntaxError(ValueError):
    """Raised for a filter with a syntax error; the text gives the position and the expected token."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token. kind: a keyword in capitals, an operator, or one of END, NAME, NUMBER, STRING. text: of a string, its
    value.
    """

    kind: str
    text: str
    position: int
    """The position of its first character, from 1."""

    def unexpected(self, wanted: str) -> FilterSyntaxError:
        """Return the error for a token of the wrong kind at this position."""
        if self.kind == END:
            return FilterSyntaxError(f"the filter ends at character {self.position}, where {wanted} is expected")
        return self.wrong(f"{wanted} is expected")

    def wrong(self, why: str) -> FilterSyntaxError:
        """Return the error for an invalid token at this position."""
        return FilterSyntaxError(f"{self.text[:_SHOWN_LENGTH_MAX]!r} at character {self.position}: {why}")


def tokens_of(text: str) -> list[Token]:
    """Return all tokens; the last one is END. Raises FilterSyntaxError."""
    if len(text) > TEXT_LENGTH_MAX:
        raise FilterSyntaxError(f"a filter of {len(text)} characters: at most {TEXT_LENGTH_MAX} are allowed")
    tokens: list[Token] = []
    place = 0
    while not tokens or tokens[-1].kind != END:
        found = _TOKEN.match(text, place)
        if found is None:
            raise _unreadable(text, place)
        tokens.append(_token(found))
        place = found.end()
    return tokens


def _token(found: re.Match[str]) -> Token:
    group = found.lastgroup
    assert group is not None, "one of them has matched"
    text, position = found[group], found.start(group) + 1
    match group:
        case "name":
            word = text.upper()
            return Token(word if word in _WORDS else NAME, text, position)
        case "number":
            return Token(NUMBER, text.rstrip("lL"), position)
        case "string":
            return Token(STRING, text.replace("''", "'"), position - 1)
        case "sign":
            return Token(text, text, position)
    return Token(END, "", position)


def _unreadable(text: str, place: int) -> FilterSyntaxError:
    rest = text[place:].lstrip(" \t\r\n\f")
    position = len(text) - len(rest) + 1
    if rest.startswith("'"):
        return FilterSyntaxError(f"the string that begins at character {position} does not end: close it by '")
    return Token("", rest[:1], position).wrong("this is not understood: docs/how-to/rocketmq.md has all that is")
