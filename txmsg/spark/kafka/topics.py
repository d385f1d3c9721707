"""Matches the topics of Kafka that a read wants, by a regular expression that Java and Python read alike. Pure."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Final

from txmsg.metaq.kafka.names import INTERNAL, SUFFIXES

_LEGAL: Final = string.ascii_letters + string.digits + "._-"
"""The characters of topic names in Kafka."""
_TOKEN: Final = re.compile(r"\[!?\]?[^\]]*\]|.", re.DOTALL)
_NOT_BEFORE: Final = f"(?!{INTERNAL})"
_BEGIN: Final = r"(?![.\-])"
"""Refuses names that begin with a character with which topics of txmsg do not begin."""
_END: Final = "".join(f"(?<!{re.escape(suffix)})" for suffix in SUFFIXES.values())
"""Refuses topics of groups, which a log does not count among its own."""


def expression_of(patterns: Iterable[str], prefix: str) -> str:
    """Return an expression for the topics of Kafka whose names in txmsg match one of these patterns with * ? [ ]."""
    wanted = "|".join("".join(map(_expression, _TOKEN.findall(pattern))) for pattern in patterns)
    return rf"\A{_NOT_BEFORE}{re.escape(prefix)}{_BEGIN}(?:{wanted}){_END}\Z"


def _expression(token: str) -> str:
    """Return an expression with each character spelt out: between brackets Java reads some as operators."""
    if token == "*":
        return ".*"
    found = [char for char in _LEGAL if fnmatchcase(char, token)]
    if not found:
        return "(?!)"
    return re.escape(found[0]) if len(found) == 1 else f"[{re.escape(''.join(found))}]"
