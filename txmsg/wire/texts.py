"""The check for NUL characters in texts of a request, which PostgreSQL can neither store nor compare."""

from __future__ import annotations

from functools import cache, reduce
from typing import Any

from txmsg.errors import InvalidName, TxmsgError, shown


def nul_in(request: Any) -> TxmsgError | None:
    """Return the error of a text with a NUL, or None. Skips lists: their items are checked one by one, each with its
    own error."""
    for path in _texts_of(request.DESCRIPTOR):
        text = reduce(getattr, path, request)
        if "\0" in text:
            return InvalidName(
                f"{path[-1]} {shown(text)} contains a NUL character, which no stored text has: remove it"
            )
    return None


@cache  # bounded by the messages of the protocol
def _texts_of(descriptor: Any, above: tuple[Any, ...] = ()) -> tuple[tuple[str, ...], ...]:
    """Return the path to each text in a message of this type that is not in a list."""
    found: list[tuple[str, ...]] = []
    for field in descriptor.fields:
        if field.is_repeated:
            continue
        if field.type == field.TYPE_STRING:
            found.append((field.name,))
        elif field.message_type is not None and field.message_type not in above:
            found += [(field.name, *rest) for rest in _texts_of(field.message_type, (*above, descriptor))]
    return tuple(found)
