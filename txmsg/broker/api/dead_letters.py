"""The service DeadLetters: dead letters listed, redriven and purged. Decides what each caller may see."""

from __future__ import annotations

from dataclasses import replace

from txmsg.administration.dead_letters import (
    DeadLetter,
    DeadLetterBatch,
    DeadLetterFilter,
    DeadLetterPage,
    DeadLetterQuery,
    DeadLettersDone,
    Selection,
)
from txmsg.broker.api.withheld import told
from txmsg.broker.store.dead_letters import DeadLetters
from txmsg.message import check_name
from txmsg.wire.access.permissions import DESCRIBE_GROUP, READ_TOPIC
from txmsg.wire.caller import may, names_for


class DeadLettersApi:
    """The service DeadLetters."""

    def __init__(self, dead_letters: DeadLetters) -> None:
        self._dead_letters = dead_letters

    async def list(self, query: DeadLetterQuery) -> DeadLetterPage:
        _check(query.which)
        page = await self._dead_letters.list(query, groups=names_for(DESCRIBE_GROUP))
        return replace(page, letters=[_visible(letter, whole=query.whole) for letter in page.letters])

    async def count(self, which: DeadLetterFilter) -> Selection:
        _check(which)
        return await self._dead_letters.count(which)

    async def redrive(self, batch: DeadLetterBatch) -> DeadLettersDone:
        _check(batch.which)
        return await self._dead_letters.redrive(batch)

    async def purge(self, batch: DeadLetterBatch) -> DeadLettersDone:
        _check(batch.which)
        return await self._dead_letters.purge(batch)


def _check(which: DeadLetterFilter) -> None:
    """Raise InvalidName for an invalid group or topic."""
    if which.group:
        check_name("group", which.group)
    if which.topic:
        check_name("topic", which.topic)


def _visible(letter: DeadLetter, *, whole: bool) -> DeadLetter:
    letter = told(letter)
    if not whole or may(READ_TOPIC, letter.topic):
        return letter
    return replace(letter, headers={}, body=b"", is_withheld=True)
