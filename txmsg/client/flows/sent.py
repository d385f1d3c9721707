"""The messages of a late transaction, in the order they were sent; each goes with the savepoint it was sent in.

Knows no SQL: a savepoint is a name, or a transaction object of the session, whose SAVEPOINT may be sent later or never.
Once it is sent, only statements tell what becomes of it: the session says that it was rolled back also when its RELEASE
was carried out, and something after it failed.
"""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy.orm import SessionTransaction

from txmsg.errors import InvalidMessage
from txmsg.message import MESSAGES_PER_TRANSACTION_MAX, Message


class _SentEntry(NamedTuple):
    message: Message
    number: int
    """Ascending from 0; those of messages that are gone are not used again."""
    nested: SessionTransaction | None
    """The innermost savepoint of the session when it was sent."""


class SentMessages:
    """A `SavepointListener`. What goes with a savepoint is always the end of the list: what was sent after it."""

    def __init__(self) -> None:
        self._entries: list[_SentEntry] = []
        self._next_number = 0
        self._savepoints: list[tuple[str, int]] = []
        """Name, and the least number of a message that goes with it."""

    def __len__(self) -> int:
        return len(self._entries)

    def messages(self) -> list[Message]:
        """Return the messages that were not rolled back."""
        return [entry.message for entry in self._entries]

    def add(self, message: Message, nested: SessionTransaction | None) -> int:
        """Add a message; return its place. nested: the session's innermost savepoint now.

        Raises InvalidMessage beyond 1,000 messages.
        """
        place = len(self._entries)
        if place >= MESSAGES_PER_TRANSACTION_MAX:
            raise InvalidMessage(f"more than {MESSAGES_PER_TRANSACTION_MAX} messages in one transaction")
        # Numbers are not reused after a rollback to a savepoint: `savepoint` remembers the number from which its
        # messages begin.
        self._entries.append(_SentEntry(message, self._next_number, nested))
        self._next_number += 1
        return place

    def savepoint(self, name: str, *, replaces: bool) -> None:
        """SAVEPOINT was carried out, by the session, by its connection, or as text.

        replaces: whether one of the same name is gone by this, as in MySQL; elsewhere it is hidden for a while.
        """
        if replaces and (place := self._place_of(name)) is not None:
            del self._savepoints[place]
        self._savepoints.append((name, self._next_number))

    def begun(self, nested: SessionTransaction) -> None:
        """Connect the session's `nested` with the SAVEPOINT that was carried out last.

        The session sends it with the first statement; what was sent before that goes with it, too.
        """
        name, first = self._savepoints.pop()
        first = next((entry.number for entry in self._entries if _is_within(entry.nested, nested)), first)
        self._savepoints.append((name, first))

    def released(self, name: str) -> None:
        """RELEASE was carried out: what was done stays, and counts as done before the savepoint."""
        place = self._place_of(name)
        if place is not None:
            del self._savepoints[place:]

    def rolled_back_to(self, name: str) -> None:
        """ROLLBACK TO was carried out: the savepoint stays, those after it are gone."""
        place = self._place_of(name)
        if place is not None:
            first = self._savepoints[place][1]
            self._entries = [entry for entry in self._entries if entry.number < first]
            del self._savepoints[place + 1 :]

    def _place_of(self, name: str) -> int | None:
        """Return the place of a savepoint; of two with one name, the later. None: there is none."""
        places = (place for place in reversed(range(len(self._savepoints))) if self._savepoints[place][0] == name)
        return next(places, None)

    def rolled_back_unsent(self, nested: SessionTransaction) -> None:
        """Remove messages of a savepoint that the session has rolled back without a statement since it began."""
        self._entries = [entry for entry in self._entries if not _is_within(entry.nested, nested)]


def _is_within(nested: SessionTransaction | None, transaction: SessionTransaction) -> bool:
    while nested is not None:
        if nested is transaction:
            return True
        nested = nested.parent
    return False
