"""Keys of erasable topics: their topic, their retention, and their deletion."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple
from uuid import UUID

import psycopg
import pytest

from txmsg.broker.store.body_keys import BodyKeyStore, drop_expired, opened
from txmsg.broker.store.connect import open_pool, session, upkeep_session
from txmsg.message import new_transaction_id
from txmsg.message.erasable import DAMAGED_HEADER, ERASED_HEADER, new_keys, seal
from txmsg.wire.headers import pack_headers
from txmsg.wire.sealed import SEALED

ID = new_transaction_id()
HOUR_S = 3600.0


@pytest.fixture
def topics(notify_url: str) -> tuple[int, int]:
    """The ids of two erasable topics, a and b."""
    with psycopg.connect(notify_url, connect_timeout=10) as connection:
        a, b = connection.execute(
            "insert into txmsg.topic (name, queue_count, ordered_queues, erasable_since, body_keys_kept_s) "
            "select name, 1, 1, now(), %s from unnest(array['a', 'b']) name returning id",
            (HOUR_S,),
        ).fetchall()
    return a[0], b[0]


@pytest.fixture
async def keys(notify_url: str) -> AsyncIterator[BodyKeyStore]:
    async with open_pool(notify_url, size_max=2) as pool:
        yield BodyKeyStore(pool)


async def obtained(keys: BodyKeyStore, topic_id: int, kept_s: float = HOUR_S) -> bytes | None:
    return (await keys.obtain(topic_id, [ID.bytes], [0], new_keys(1), [kept_s]))[ID.bytes, 0]


async def test_an_id_has_separate_keys_in_each_topic(keys: BodyKeyStore, topics: tuple[int, int]) -> None:
    in_a, in_b = [await obtained(keys, topic_id) for topic_id in topics]
    assert in_a != in_b
    both = {"a": [ID.bytes], "b": [ID.bytes]}
    assert await keys.of(both) == {"a": {(ID.bytes, 0): in_a}, "b": {(ID.bytes, 0): in_b}}
    assert await keys.erase("a", ID, None) == (1, 1)
    assert await keys.of(both) == {"a": {(ID.bytes, 0): None}, "b": {(ID.bytes, 0): in_b}}
    assert await keys.of({"a": []}) == {"a": {}}


async def test_a_repeat_uses_the_stored_key_and_extends_its_retention(
    keys: BodyKeyStore, topics: tuple[int, int], notify_url: str
) -> None:
    def left_s() -> float:
        with psycopg.connect(notify_url, connect_timeout=10) as connection:
            [(left_s,)] = connection.execute("select extract(epoch from expires_at - now()) from txmsg.body_key")
        return float(left_s)

    first = await obtained(keys, topics[0])
    assert await obtained(keys, topics[0], kept_s=10 * HOUR_S) == first
    assert left_s() > 9 * HOUR_S
    assert await obtained(keys, topics[0]) == first
    assert left_s() > 9 * HOUR_S
    await keys.erase("a", ID, 0)
    assert await obtained(keys, topics[0]) is None


async def test_a_request_may_name_a_message_twice(keys: BodyKeyStore, topics: tuple[int, int]) -> None:
    twice = await keys.obtain(topics[0], [ID.bytes] * 2, [0, 0], new_keys(2), [HOUR_S] * 2)
    assert twice == (await keys.of({"a": [ID.bytes]}))["a"]
    assert len(twice) == 1


async def test_deleting_a_topic_deletes_only_its_keys(
    keys: BodyKeyStore, topics: tuple[int, int], notify_url: str
) -> None:
    await obtained(keys, topics[0])
    in_b = await obtained(keys, topics[1])
    async with upkeep_session(notify_url) as connection:
        assert await drop_expired(connection) == 0
        await connection.execute("delete from txmsg.topic where name = 'a'")
        assert await drop_expired(connection) == 1
    assert await keys.of({"b": [ID.bytes]}) == {"b": {(ID.bytes, 0): in_b}}


class _Row(NamedTuple):
    topic: str
    transaction_id: UUID
    n: int
    headers: bytes | None
    body: bytes


async def test_a_damaged_body_is_shown_as_damaged_among_others(
    keys: BodyKeyStore, topics: tuple[int, int], notify_url: str
) -> None:
    key = await obtained(keys, topics[0])
    assert key is not None
    sealed = seal(key, b"secret")
    named = pack_headers({"h": "1"})
    rows = [
        _Row("a", ID, 0, named + SEALED, sealed[:-1]),
        _Row("a", ID, 0, named + SEALED, sealed),
        _Row("a", ID, 1, SEALED, sealed),
    ]
    async with open_pool(notify_url, size_max=1) as pool, session(pool) as connection:
        shown = await opened(connection, rows)
    assert [(row.headers, row.body) for row in shown] == [
        (named + pack_headers({DAMAGED_HEADER: "1"}), b""),
        (named, b"secret"),
        (pack_headers({ERASED_HEADER: "1"}), b""),
    ]
