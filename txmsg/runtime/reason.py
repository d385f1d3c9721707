"""The stored text of an exception, for operators: the error, and its place in the user's own code.

Stored texts are truncated, so the most telling parts come first: a line with the error, the user's frames from the
innermost one outwards, one line for all frames of libraries, then the rest of a long text.

Its words may quote the message: errors of databases name the values of a statement. Where a body is kept secret, only
the class and the frames are kept (`without_words`).
"""

from __future__ import annotations

import itertools
import re
import sysconfig
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Final

from txmsg.errors import said_by

_SUMMARY_LENGTH_MAX: Final = 160
_FRAMES_MAX: Final = 5
_CALLERS: Final = frozenset({"txmsg", "asyncio", "concurrent", "contextlib"})
"""Packages whose frames surround those of the user's function."""
_LIBRARIES: Final = (
    *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    "<frozen",
)

_REASON: Final = "_txmsg_reason"
_CLASS: Final = re.compile(r"[^\W\d]\w*(?=:)")
_WHERE: Final = re.compile(r"  (?:at|called by|raised in) [^,]+, .* line \d+(?:: |\Z)")
_REST: Final = "  in full:"
_NO_WORDS: Final = "its words are not kept, as they may quote the body"

_Place = tuple[FrameType, int]


def with_reason(exc: Exception, reason: str) -> Exception:
    """Return an exception of another process with the text of `text_of` there, where its frames were."""
    exc.__dict__[_REASON] = reason
    return exc


def text_of(exc: Exception) -> str:
    """Return the reason of a failure of the user's function, in characters that PostgreSQL can store."""
    if (reason := exc.__dict__.get(_REASON)) is not None:
        return str(reason)
    summary, rest = _summary(exc)
    lines = [summary, *_where(exc)]
    if exc.__cause__ is not None:
        lines.append(f"  caused by {_summary(exc.__cause__)[0]}")
    if rest:
        lines += [_REST, rest]
    return "\n".join(lines).encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")


def without_words(text: str) -> str:
    """Return the class and the frames of a text of `text_of`, which quote no message; of other texts nothing."""
    first, *lines = text.split("\n")
    # Up to `_REST`, behind which are words, whatever they look like.
    where = list(itertools.takewhile(_WHERE.match, lines))
    found = _CLASS.match(first) if where else None
    return "\n".join([f"{found[0]}: {_NO_WORDS}", *where]) if found else _NO_WORDS


def _summary(exc: BaseException) -> tuple[str, str]:
    """Return a line with the error, and the rest of its text."""
    said = said_by(exc)
    first, _, rest = said.partition("\n")
    summary = f"{type(exc).__name__}: {first}"
    if len(summary) > _SUMMARY_LENGTH_MAX:
        return f"{summary[:_SUMMARY_LENGTH_MAX]}...", said
    return summary, rest


def _where(exc: BaseException) -> Iterator[str]:
    """Yield the frames of the user's function, or else of the code that raised."""
    places = list(traceback.walk_tb(exc.__traceback__))
    root = _root_of_user(places)
    own = [place for place in places if _is_own(place, root)]
    if not own and exc.__cause__ is not None and exc.__cause__.__traceback__ is not None:  # one of ours around it
        yield from _where(exc.__cause__)
        return
    told = [*reversed(own[-_FRAMES_MAX:])]
    for place, word in zip(told, ("at", *("called by",) * _FRAMES_MAX), strict=False):
        yield f"  {word} {_shown(place)}"
    if places and (not own or places[-1] is not own[-1]):
        yield f"  raised in {_shown(places[-1])}"


def _root_of_user(places: list[_Place]) -> str | None:
    """Return the package of the user's function: the first outside of libraries, or else the first that is not ours.

    An application may be installed as libraries are.
    """
    others = [place for place in places if _package(place) not in _CALLERS]
    own = next((place for place in others if not _is_library(place)), others[0] if others else None)
    return None if own is None else _package(own)


def _is_own(place: _Place, root: str | None) -> bool:
    package = _package(place)
    return package not in _CALLERS and (package == root or not _is_library(place))


def _package(place: _Place) -> str:
    name: str = place[0].f_globals.get("__name__", "")
    return name.partition(".")[0]


def _is_library(place: _Place) -> bool:
    path = place[0].f_code.co_filename
    return path.startswith(_LIBRARIES) or "site-packages" in path


def _shown(place: _Place) -> str:
    (frame,) = traceback.StackSummary.extract(iter([place]))
    return f"{frame.name}, {frame.filename} line {frame.lineno}: {frame.line}".removesuffix(": ")
