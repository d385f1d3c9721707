"""Bodies of erasable topics in a broker, without a database: sealed, opened and left out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pytest

from tests.closed_pool import closed_pool
from txmsg.broker.delivery.values import MessageBatch, Receipt
from txmsg.broker.erasable import ErasableBodies, UnreadableCounts
from txmsg.broker.store.body_keys import BodyKeyStore, Keys
from txmsg.broker.store.rows import StoredRow
from txmsg.broker.store.topics import StoredTopic
from txmsg.errors import DuplicateId, InvalidMessage
from txmsg.message import QueueId, QueueNumber, new_transaction_id_bytes
from txmsg.message.columns import Columns
from txmsg.message.erasable import KEY_SIZE_BYTES, SEALED_HEADER, new_keys, seal, unseal
from txmsg.wire.headers import pack_headers, unpack_headers
from txmsg.wire.sealed import SEALED, is_sealed

ERASABLE = StoredTopic("t", (QueueId(1),), 1, 1, 0, id=7, erasable_s=3600.0, seals_at=50.0)
PLAIN = StoredTopic("u", (QueueId(2),), 1, 1, 0)


class MemoryKeys(BodyKeyStore):
    """Keys of a Notify database, kept in memory."""

    def __init__(self) -> None:
        super().__init__(closed_pool())
        self.keys: dict[tuple[bytes, int], bytes | None] = {}
        self.kept_s: list[float] = []

    async def obtain(
        self, topic_id: int, ids: Sequence[bytes], ns: Sequence[int], keys: Sequence[bytes], kept_s: Sequence[float]
    ) -> Keys:
        assert topic_id == ERASABLE.id
        self.kept_s += kept_s
        for place, key in zip(zip(ids, ns, strict=True), keys, strict=True):
            self.keys.setdefault(place, key)
        return self.keys

    async def of(self, ids: Mapping[str, Collection[bytes]]) -> Mapping[str, Keys]:
        return {topic: {place: key for place, key in self.keys.items() if place[0] in ids[topic]} for topic in ids}


@pytest.fixture
def keys() -> MemoryKeys:
    return MemoryKeys()


def bodies_of(keys: MemoryKeys, now: float = 100.0) -> ErasableBodies:
    return ErasableBodies(keys, monotonic=lambda: now)


def a_batch(count: int = 1, body: bytes = b"secret", **columns: Any) -> Columns:
    ids = [new_transaction_id_bytes() for _ in range(count)]
    return Columns(transaction_id=ids, body=[body] * count, born_at_us=[1] * count, **columns)


def handout(batch: Columns, topic: str = "t") -> MessageBatch:
    headers = batch.headers or [b""] * len(batch.transaction_id)
    rows = [
        StoredRow(offset, id_bytes, 0, None, None, packed or None, body, 0, 0, None)  # type: ignore[arg-type]
        for offset, (id_bytes, packed, body) in enumerate(zip(batch.transaction_id, headers, batch.body, strict=True))
    ]
    attempts = [offset + 1 for offset in range(len(rows))]
    receipt = Receipt(1, 5, 2, [row.offset for row in rows])
    return MessageBatch(topic, QueueNumber(0), receipt, rows, attempts=attempts)


def test_each_body_has_a_key_and_the_same_key_gives_the_same_bytes() -> None:
    first, second = new_keys(2)
    assert (len(first), len(second)) == (KEY_SIZE_BYTES, KEY_SIZE_BYTES)
    assert seal(first, b"x") == seal(first, b"x") != seal(second, b"x")
    assert unseal(first, seal(first, b"")) == b""
    for sealed in (seal(first, b"x"), b"", seal(second, b"x")[:-1]):
        with pytest.raises(InvalidMessage, match="damaged"):
            unseal(second, sealed)


def test_two_bodies_under_one_key_do_not_reveal_each_other() -> None:
    """With one nonce, as in a stream cipher, the difference of stored bodies would be that of the bodies."""
    (key,) = new_keys(1)
    stored = [seal(key, body) for body in (b"a" * 32, b"b" * 32)]
    assert stored[0][:12] != stored[1][:12]
    difference = {first ^ second for first, second in zip(stored[0][12:44], stored[1][12:44], strict=True)}
    assert len(difference) > 1


async def test_a_batch_is_sealed_in_place_with_its_headers_kept(keys: MemoryKeys) -> None:
    batch = a_batch(2, headers=[pack_headers({"h": "1"}), b""])
    assert await bodies_of(keys).seal(ERASABLE, batch) == {}
    assert b"secret" not in b"".join(batch.body)
    assert batch.body[0] != batch.body[1]
    assert unpack_headers(batch.headers[0]).keys() == {"h", SEALED_HEADER}
    opened, acks, refusals = await bodies_of(keys).opened([handout(batch)])
    assert [(row.headers, row.body) for row in opened[0].rows] == [
        (pack_headers({"h": "1"}), b"secret"),
        (None, b"secret"),
    ]
    assert (acks, refusals) == ([], [])


async def test_nothing_is_sealed_before_all_brokers_know_and_nothing_of_other_topics(keys: MemoryKeys) -> None:
    batch = a_batch()
    await bodies_of(keys, now=49.0).seal(ERASABLE, batch)
    await bodies_of(keys).seal(PLAIN, batch)
    assert (batch.body, batch.headers, keys.keys) == ([b"secret"], [], {})


async def test_the_key_of_a_delayed_message_is_kept_from_its_due_time(keys: MemoryKeys) -> None:
    await bodies_of(keys).seal(ERASABLE, a_batch(2, deliver_at_us=[0, 4_102_444_800_000_000]))  # the year 2100
    assert keys.kept_s[0] == 3600.0
    assert keys.kept_s[1] > 3600.0 + 365 * 86_400
    await bodies_of(keys).seal(ERASABLE, a_batch(2, deliver_after_us=[0, 60_000_000]))
    assert list(keys.kept_s[-2:]) == [3600.0, 3660.0]


async def test_a_late_copy_of_an_erased_message_is_refused(keys: MemoryKeys) -> None:
    batch = a_batch(2)
    keys.keys[batch.transaction_id[0], 0] = None
    refused = await bodies_of(keys).seal(ERASABLE, batch)
    assert {id_bytes: type(error) for id_bytes, error in refused.items()} == {batch.transaction_id[0]: DuplicateId}


async def test_erased_and_damaged_messages_are_left_out_and_others_delivered(keys: MemoryKeys) -> None:
    batch = a_batch(4)
    await bodies_of(keys).seal(ERASABLE, batch)
    keys.keys[batch.transaction_id[0], 0] = None  # erased
    del keys.keys[batch.transaction_id[1], 0]  # expired
    batch.body[3] = batch.body[3][:-1]
    bodies = bodies_of(keys)
    (opened,), acks, (refusal,) = await bodies.opened([handout(batch)])
    assert bodies.unreadable == UnreadableCounts(erased=1, expired=1, damaged=1)
    assert [(row.offset, row.body) for row in opened.rows] == [(2, b"secret")]
    assert (opened.attempts, opened.receipt) == ([3], Receipt(1, 5, 2, [2]))
    assert acks == [Receipt(1, 5, 2, [0, 1])]
    assert refusal.receipt == Receipt(1, 5, 2, [3])
    assert "damaged" in refusal.error


async def test_a_wholly_erased_batch_is_not_delivered(keys: MemoryKeys) -> None:
    batch = a_batch()
    await bodies_of(keys).seal(ERASABLE, batch)
    keys.keys.clear()
    opened, acks, _ = await bodies_of(keys).opened([handout(batch)])
    assert (opened, acks) == ([], [Receipt(1, 5, 2, [0])])


async def test_sealed_messages_are_decrypted_even_if_their_topic_is_not_known_as_erasable(
    keys: MemoryKeys,
) -> None:
    batch = a_batch()
    await bodies_of(keys).seal(ERASABLE, batch)
    (opened,), _, _ = await bodies_of(keys).opened([handout(batch, PLAIN.name)])
    assert opened.rows[0].body == b"secret"


async def test_other_topics_and_older_messages_are_delivered_unchanged(keys: MemoryKeys) -> None:
    handouts = [handout(a_batch()), handout(a_batch(), "u")]
    opened, _, _ = await bodies_of(keys).opened(handouts)
    assert opened is handouts


def test_a_header_that_looks_like_the_mark_is_not_the_mark() -> None:
    assert is_sealed(pack_headers({"h": "1"}) + SEALED)
    assert not is_sealed(pack_headers({"h": SEALED.decode()}))
    assert not is_sealed(None)
