"""Bodies of erasable topics: encrypted before they are stored, decrypted when they are handed out.

So tables, retries, dead letters, what brokers have in memory, the write-ahead log and the mirrored logs hold ciphertext
only. A key is looked up each time: what is erased is not handed out by any broker any more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from uuid import UUID

from txmsg.broker.delivery.values import MessageBatch, Receipt, Refusal
from txmsg.broker.store.body_keys import SEALED, BodyKeys, Keys, is_sealed, unsealed
from txmsg.broker.store.rows import Row
from txmsg.broker.store.topics import Topic, TopicRegistry
from txmsg.columns import Columns
from txmsg.erasable import new_keys, seal
from txmsg.errors import DuplicateId, InvalidMessage, TxmsgError
from txmsg.logs import EventLog
from txmsg.message import now_us

_log = EventLog(__name__)

_DAMAGED = "its body cannot be decrypted with its key: the stored bytes are damaged"


class ErasableBodies:
    """What a broker does with the bodies of erasable topics. With those of others it does nothing."""

    def __init__(
        self, topics: TopicRegistry, keys: BodyKeys, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._topics = topics
        self._keys = keys
        self._monotonic = monotonic

    async def seal(self, topic: Topic, batch: Columns) -> dict[bytes, TxmsgError]:
        """Encrypts the bodies of messages to an erasable topic, in place; returns those that cannot be stored any more.

        Raises BrokerUnavailable. A key that no message comes for expires as others do.
        """
        if topic.erasable_s is None or self._monotonic() < topic.seals_at or not batch.ids:
            return {}
        ns = batch.n or [0] * len(batch.ids)
        kept_s = [topic.erasable_s] * len(batch.ids)
        if any(batch.deliver_at_us):
            now = now_us()
            kept_s = [topic.erasable_s + max(0, at - now) / 1_000_000 for at in batch.deliver_at_us]
        keys = await self._keys.obtain(topic.id, batch.ids, ns, new_keys(len(batch.ids)), kept_s)
        erased: dict[bytes, TxmsgError] = {}
        for row, (transaction_id, n) in enumerate(zip(batch.ids, ns, strict=True)):
            key = keys[transaction_id, n]
            if key is None:
                erased[transaction_id] = DuplicateId(
                    f"message {UUID(bytes=transaction_id)}.{n} was stored before, and erased since: it is not stored "
                    "again"
                )
            else:
                batch.body[row] = seal(key, batch.body[row])
        batch.headers = [headers + SEALED for headers in batch.headers or [b""] * len(batch.ids)]
        return erased

    async def opened(
        self, handouts: Sequence[MessageBatch]
    ) -> tuple[Sequence[MessageBatch], list[Receipt], list[Refusal]]:
        """What is handed out, decrypted. Left out: what is erased, as receipts, and what is damaged, as refusals.

        Raises BrokerUnavailable.
        """
        sealed = [
            place for place, handout in enumerate(handouts) if await self._is_erasable(handout.topic) and _has(handout)
        ]
        if not sealed:
            return handouts, [], []
        keys = await self._keys.of({row.transaction_id for place in sealed for row in handouts[place].rows})
        parts = list(handouts)
        acks: list[Receipt] = []
        refusals: list[Refusal] = []
        for place in sealed:
            receipt = handouts[place].receipt
            parts[place], erased, damaged = _opened(handouts[place], keys)
            if erased:
                acks.append(receipt._replace(offsets=erased))
                _log.info(
                    "message.erased_skipped",
                    "%(messages)d erased messages of topic %(topic)s are not delivered",
                    messages=len(erased),
                    topic=handouts[place].topic,
                )
            if damaged:
                refusals.append(Refusal(receipt._replace(offsets=damaged), _DAMAGED))
        return [part for part in parts if part.rows], acks, refusals

    async def _is_erasable(self, name: str) -> bool:
        topic = self._topics.known(name) or await self._topics.find(name)
        return topic is not None and topic.erasable_s is not None


def _has(handout: MessageBatch) -> bool:
    return any(is_sealed(row.headers) for row in handout.rows)


def _opened(handout: MessageBatch, keys: Keys) -> tuple[MessageBatch, list[int], list[int]]:
    """A batch decrypted, and the offsets of what it lacks: messages that are erased, and those that are damaged."""
    rows: list[Row] = []
    erased: list[int] = []
    damaged: list[int] = []
    for row in handout.rows:
        if row.headers is None or not is_sealed(row.headers):
            rows.append(row)
            continue
        key = keys.get((row.transaction_id, row.n))
        if key is None:
            erased.append(row.offset)
            continue
        try:
            headers, body = unsealed(row.headers, row.body, key)
        except InvalidMessage:
            damaged.append(row.offset)
        else:
            rows.append(row._replace(headers=headers or None, body=body))
    if len(rows) == len(handout.rows):
        return replace(handout, rows=rows), [], []
    lacking = {*erased, *damaged}
    kept = [place for place, row in enumerate(handout.rows) if row.offset not in lacking]
    return (
        replace(
            handout,
            receipt=handout.receipt._replace(offsets=[row.offset for row in rows]),
            rows=rows,
            attempts=handout.attempts and [handout.attempts[place] for place in kept],
            generations=handout.generations and [handout.generations[place] for place in kept],
        ),
        erased,
        damaged,
    )
