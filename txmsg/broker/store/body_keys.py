"""Statements on the keys of bodies of erasable topics, and decryption of rows for operators."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol, TypeVar, cast
from uuid import UUID

from psycopg import AsyncConnection

from txmsg.broker.store import audit
from txmsg.broker.store.arrays import bytea_array, smallint_array, text_array, uuid_array
from txmsg.broker.store.connect import Connection, Pool, session
from txmsg.errors import InvalidMessage
from txmsg.message import TransactionId, message_id
from txmsg.wire.sealed import damaged, is_sealed, unsealed

_EXPIRED_ROWS_MAX: Final = 10_000

Keys = Mapping[tuple[bytes, int], bytes | None]
"""Keys of one topic by transaction id and number: the key, None if the message was erased. No entry: no key is left."""


class Sealable(Protocol):
    """A row of a message that an operator sees."""

    @property
    def topic(self) -> str | None: ...
    @property
    def transaction_id(self) -> UUID: ...
    @property
    def n(self) -> int: ...
    @property
    def headers(self) -> bytes | None: ...
    @property
    def body(self) -> bytes: ...


R = TypeVar("R", bound=Sealable)


class BodyKeyStore:
    """The keys of one Notify database. Every method is its own transaction."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def obtain(
        self, topic_id: int, ids: Sequence[bytes], ns: Sequence[int], keys: Sequence[bytes], kept_s: Sequence[float]
    ) -> Keys:
        """Return the keys of these messages: those given, where none are stored yet.

        They are on disk when the messages are. Existing keys are kept for as long as new ones, kept_s seconds.
        """
        async with session(self._pool) as connection:
            cursor = await connection.execute(
                "select uuid_send(transaction_id), n, key from txmsg.obtain_body_keys(%s, %s, %s, %s, %s::float8[])",
                (topic_id, uuid_array(ids), smallint_array(ns), bytea_array(keys), list(kept_s)),
                binary=True,
            )
            return {(each, n): key for each, n, key in await cursor.fetchall()}

    async def of(self, ids: Mapping[str, Collection[bytes]]) -> Mapping[str, Keys]:
        """Return the keys of all messages of these transactions, by topic."""
        async with session(self._pool) as connection:
            return await _keys(connection, ids)

    async def erase(self, topic: str, transaction_id: UUID, n: int | None) -> tuple[int, int]:
        """Erase the keys of a message, or of all messages of a transaction.

        Returns how many had a row of a key, and how many keys were erased now. On return no broker decrypts them any
        more.
        """
        async with session(self._pool) as connection, connection.transaction():
            cursor = await connection.execute(_ERASE, {"topic": topic, "id": transaction_id, "n": n})
            ((found, erased),) = await cursor.fetchall()
            if erased:
                target = str(transaction_id) if n is None else message_id(TransactionId(transaction_id), n)
                await audit.record(connection, "message.erase", target, after={"topic": topic, "messages": erased})
            return found, erased


async def drop_expired(conn: Connection) -> int:
    """Delete expired keys, and those of deleted topics, in portions. Returns their number."""
    cursor = await conn.execute(_DELETED_TOPICS)
    dropped = await _drop(conn, "topic_id = any(%(topics)s)", [topic_id for (topic_id,) in await cursor.fetchall()])
    # The condition stands in the outer statement too: the time of a row may have been prolonged since its ctid was
    # read.
    return dropped + await _drop(conn, "expires_at < now()", [])


async def _drop(conn: Connection, which: str, topics: Sequence[int]) -> int:
    dropped = 0
    while True:
        cursor = await conn.execute(
            # By ctid: DELETE has no LIMIT, and a portion keeps the transaction and its write-ahead log short.
            f"delete from txmsg.body_key where {which} and ctid = any(array("
            f"select ctid from txmsg.body_key where {which} limit %(limit)s))",
            {"limit": _EXPIRED_ROWS_MAX, "topics": list(topics)},
        )
        dropped += cursor.rowcount
        if cursor.rowcount < _EXPIRED_ROWS_MAX:
            return dropped


async def opened(connection: AsyncConnection[Any], rows: Sequence[R]) -> list[R]:
    """Return rows for an operator, decrypted. Rows that were read without bodies stay unchanged."""
    sealed: dict[str, set[bytes]] = defaultdict(set)
    for row in rows:
        if row.topic is not None and row.body and is_sealed(row.headers):
            sealed[row.topic].add(row.transaction_id.bytes)
    if not sealed:
        return list(rows)
    keys = await _keys(connection, sealed)
    return [_opened(row, keys) if row.body and is_sealed(row.headers) else row for row in rows]


def _opened(row: R, keys: Mapping[str, Keys]) -> R:
    assert row.headers is not None
    assert row.topic is not None
    try:
        headers, body = unsealed(row.headers, row.body, keys[row.topic].get((row.transaction_id.bytes, row.n)))
    except InvalidMessage:
        headers, body = damaged(row.headers), b""  # one body must not keep the others from being listed, or checked
    if isinstance(row, tuple):
        return cast(R, cast(Any, row)._replace(headers=headers, body=body))
    return cast(R, replace(cast(Any, row), headers=headers, body=body))


async def _keys(connection: AsyncConnection[Any], ids: Mapping[str, Collection[bytes]]) -> Mapping[str, Keys]:
    keys: dict[str, dict[tuple[bytes, int], bytes | None]] = {topic: {} for topic in ids}
    wanted = {"topics": text_array(list(ids)), "ids": uuid_array(list(set().union(*ids.values())))}
    cursor = await connection.execute(_KEYS, wanted, binary=True)
    for topic, each, n, key in await cursor.fetchall():
        keys[topic][each, n] = key
    return keys


_KEYS = """
select t.name, uuid_send(b.transaction_id), b.n, b.key from txmsg.topic t join txmsg.body_key b on b.topic_id = t.id
 where t.name = any(%(topics)s) and b.transaction_id = any(%(ids)s)
"""

# One look at the index for each erasable topic, however many keys there are. Not with the topic: its deletion holds
# locks of queues, and would take as long as there are keys.
_DELETED_TOPICS = """
with recursive used(id) as (
    select min(b.topic_id) from txmsg.body_key b
    union all
    select (select min(b.topic_id) from txmsg.body_key b where b.topic_id > u.id) from used u where u.id is not null
)
select u.id from used u where u.id is not null and not exists (select from txmsg.topic t where t.id = u.id)
"""

# The row stays, without its key: a late copy of the message must find that it was erased, and is refused. FOR UPDATE in
# the order of n, so that two erasures of a transaction cannot deadlock.
_ERASE = """
with found as materialized (
    select b.topic_id, b.transaction_id, b.n, b.key is not null as had_key from txmsg.body_key b
     where b.transaction_id = %(id)s and (%(n)s::int is null or b.n = %(n)s)
       and b.topic_id = (select t.id from txmsg.topic t where t.name = %(topic)s)
     order by b.n for update
), erased as (
    update txmsg.body_key b set key = null, erased_at = now() from found f
     where b.topic_id = f.topic_id and b.transaction_id = f.transaction_id and b.n = f.n and f.had_key
    returning b.n
)
select (select count(*) from found), (select count(*) from erased)
"""
