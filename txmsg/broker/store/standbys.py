"""Checks that the synchronous standbys that a commit waited for have it on disk. Knows no batch.

PostgreSQL reports success also when it ends such a wait: at a timeout with a warning, which a setting may hide, and
when the setting that names the standbys is emptied, without one. So the standbys' flushed positions are read after the
commit (decision 31).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

import psycopg
from psycopg import AsyncConnection

_LOOK_AGAIN_S = 0.01

_COUNTED = re.compile(r"\s*(?:(?:any|first)\s+)?(\d+)\s*\((.*)\)\s*", re.IGNORECASE | re.DOTALL)
_NAME = re.compile(r'"((?:[^"]|"")*)"|([^\s,"]+)')


class Unconfirmed(Exception):
    """The batch is committed, and not known to be on the disks of as many standbys as its durability requires."""


@dataclass(frozen=True, slots=True)
class StandbyRule:
    """The number of standbys that a commit waits for, and their names: a value of synchronous_standby_names.

    With FIRST, too, any of the names count: the promise is a number of copies. Source: syncrep_gram.y.
    """

    number: int
    names: frozenset[str]

    @classmethod
    def of(cls, setting: str) -> Self:
        """Parse a value that the server has accepted, and that names a standby."""
        counted = _COUNTED.fullmatch(setting)
        number, names = (int(counted[1]), counted[2]) if counted else (1, setting)
        listed = frozenset((quoted.replace('""', '"') or plain).lower() for quoted, plain in _NAME.findall(names))
        assert number >= 1, setting
        assert listed, setting
        return cls(number, listed)

    def count(self, standbys: Iterable[str]) -> int:
        """Return how many of these application_names the rule names. Ignores case, as the server does."""
        return sum("*" in self.names or name.lower() in self.names for name in standbys)


async def await_standbys(connection: AsyncConnection[Any], setting: str, lsn: str, *, timeout_s: float) -> None:
    """Return when everything committed before `lsn` is on disk at the standbys that `setting` asks for.

    setting: synchronous_standby_names as it was when the commit began, for it may be changed meanwhile. Usually one
    query is enough: the commit has waited. Raises Unconfirmed after timeout_s, at once if 0.
    """
    rule = StandbyRule.of(setting)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while True:
        try:
            cursor = await connection.execute(_HAVE_IT, {"lsn": lsn})
            have_it = rule.count([name for (name,) in await cursor.fetchall()])
        except psycopg.Error as exc:
            raise Unconfirmed(f"the primary does not say what its standbys have: {exc}") from exc
        if have_it >= rule.number:
            return
        if loop.time() >= deadline:
            raise Unconfirmed(
                f"{have_it} of {rule.number} named by synchronous_standby_names ({setting}) have it on disk"
            )
        # Polled: the server offers no event for a standby's flushed position but the commit itself, which has ended.
        await asyncio.sleep(_LOOK_AGAIN_S)


# A reader of a logical slot confirms what it has read, and keeps no copy of the database.
_HAVE_IT = """
select r.application_name from pg_stat_replication r
 where r.flush_lsn >= %(lsn)s::pg_lsn
   and not exists (select from pg_replication_slots s where s.active_pid = r.pid and s.slot_type = 'logical')
"""
