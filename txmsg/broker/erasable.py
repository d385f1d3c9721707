"""Bodies of erasable topics: encrypted before they are stored, decrypted when they are delivered.

So tables, retries, dead letters, the memory of brokers, the write-ahead log and the mirrored logs hold ciphertext only.
A key is looked up each time: no broker delivers an erased message any more. The messages themselves say if they are
encrypted, so a broker that does not know yet that a topic is erasable decrypts, too.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final
from uuid import UUID

from txmsg.broker.delivery.values import MessageBatch, Receipt, Refusal
from txmsg.broker.store.body_keys import BodyKeyStore, Keys
from txmsg.broker.store.rows import StoredRow
from txmsg.broker.store.topics import StoredTopic
from txmsg.errors import DuplicateId, InvalidMessage, TxmsgError
from txmsg.message import now_us
from txmsg.message.columns import Columns
from txmsg.message.erasable import new_keys, seal
from txmsg.runtime.logs import EventLog, HourlyLog
from txmsg.wire.sealed import SEALED, is_sealed, unsealed

_log = EventLog(__name__)

_DAMAGED: Final = "its body cannot be decrypted with its key: the stored bytes are damaged"
_headers_of = attrgetter("headers")


@dataclass(slots=True)
class UnreadableCounts:
    """Messages that this broker has not delivered because their bodies cannot be read."""

    erased: int = 0
    expired: int = 0
    damaged: int = 0


class ErasableBodies:
    """Encryption and decryption of the bodies of erasable topics. Those of other topics pass unchanged."""

    def __init__(self, keys: BodyKeyStore, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._keys = keys
        self._monotonic = monotonic
        self._hourly = HourlyLog(_log)
        self.unreadable = UnreadableCounts()

    async def seal(self, topic: StoredTopic, batch: Columns) -> dict[bytes, TxmsgError]:
        """Encrypt the bodies of messages to an erasable topic, in place. Returns those that cannot be stored any more.

        Raises BrokerUnavailable. A key whose message is never stored expires as others do.
        """
        if topic.erasable_s is None or self._monotonic() < topic.seals_at or not batch.transaction_id:
            return {}
        ids = batch.transaction_id
        ns = batch.n or [0] * len(ids)
        kept_s = [topic.erasable_s] * len(ids)
        # A delayed message must be readable when it is due, so its delay is added to the life of its key.
        if any(batch.deliver_at_us):
            now = now_us()
            kept_s = [topic.erasable_s + max(0, at - now) / 1_000_000 for at in batch.deliver_at_us]
        if any(batch.deliver_after_us):
            kept_s = [kept + after / 1_000_000 for kept, after in zip(kept_s, batch.deliver_after_us, strict=True)]
        # Stored before the batch, in a transaction of its own: a message without its key would be lost, a key without
        # its message only expires.
        keys = await self._keys.obtain(topic.id, ids, ns, new_keys(len(ids)), kept_s)
        erased: dict[bytes, TxmsgError] = {}
        for row, (transaction_id, n) in enumerate(zip(ids, ns, strict=True)):
            key = keys[transaction_id, n]
            if key is None:
                erased[transaction_id] = DuplicateId(
                    f"message {UUID(bytes=transaction_id)}.{n} was stored before, and erased since: it is not stored "
                    "again"
                )
            else:
                batch.body[row] = seal(key, batch.body[row])
        batch.headers = [headers + SEALED for headers in batch.headers or [b""] * len(ids)]
        return erased

    async def opened(
        self, handouts: Sequence[MessageBatch]
    ) -> tuple[Sequence[MessageBatch], list[Receipt], list[Refusal]]:
        """Return the messages to deliver, decrypted.

        Left out: messages without a key, as receipts to acknowledge; damaged ones, as refusals. Raises
        BrokerUnavailable.
        """
        sealed = [place for place, handout in enumerate(handouts) if _has_sealed(handout)]
        if not sealed:
            return handouts, [], []
        ids: dict[str, set[bytes]] = defaultdict(set)
        for place in sealed:
            ids[handouts[place].topic].update(row.transaction_id for row in handouts[place].rows)
        keys_of = await self._keys.of(ids)
        parts = list(handouts)
        acks: list[Receipt] = []
        refusals: list[Refusal] = []
        for place in sealed:
            receipt, keys = handouts[place].receipt, keys_of[handouts[place].topic]
            parts[place], keyless, damaged = _opened(handouts[place], keys)
            if keyless:
                acks.append(receipt._replace(offsets=[row.offset for row in keyless]))
                self._note(handouts[place].topic, keyless, keys)
            if damaged:
                refusals.append(Refusal(receipt._replace(offsets=damaged), _DAMAGED))
                self.unreadable.damaged += len(damaged)
        return [part for part in parts if part.rows], acks, refusals

    def _note(self, topic: str, keyless: Sequence[StoredRow], keys: Keys) -> None:
        """Count and log the messages that are skipped: erased by an operator, or with an expired key."""
        erased = sum((row.transaction_id, row.n) in keys for row in keyless)
        self.unreadable.erased += erased
        if erased:
            _log.info(
                "message.erased_skipped",
                "%(messages)d erased messages of topic %(topic)s are not delivered",
                messages=erased,
                topic=topic,
            )
        if expired := len(keyless) - erased:
            self.unreadable.expired += expired
            self._hourly.error(
                "message.key_expired",
                "%(messages)d messages of topic %(topic)s are not delivered, their keys have expired: keep keys for "
                "longer with `txmsg topic alter %(topic)s --erasable DURATION`, or read the topic sooner",
                messages=expired,
                topic=topic,
            )


def _has_sealed(handout: MessageBatch) -> bool:
    # The first test costs next to nothing where no message has headers.
    return any(map(_headers_of, handout.rows)) and any(is_sealed(row.headers) for row in handout.rows)


def _opened(handout: MessageBatch, keys: Keys) -> tuple[MessageBatch, list[StoredRow], list[int]]:
    """Return a batch decrypted, and the messages left out: rows without a key, and offsets of damaged ones."""
    rows: list[StoredRow] = []
    keyless: list[StoredRow] = []
    damaged: list[int] = []
    for row in handout.rows:
        if row.headers is None or not is_sealed(row.headers):
            rows.append(row)
            continue
        key = keys.get((row.transaction_id, row.n))
        if key is None:
            keyless.append(row)
            continue
        try:
            headers, body = unsealed(row.headers, row.body, key)
        except InvalidMessage:
            damaged.append(row.offset)
        else:
            rows.append(row._replace(headers=headers or None, body=body))
    if len(rows) == len(handout.rows):
        return replace(handout, rows=rows), [], []
    lacking = {*(row.offset for row in keyless), *damaged}
    kept = [place for place, row in enumerate(handout.rows) if row.offset not in lacking]
    return (
        replace(
            handout,
            receipt=handout.receipt._replace(offsets=[row.offset for row in rows]),
            rows=rows,
            attempts=handout.attempts and [handout.attempts[place] for place in kept],
            generations=handout.generations and [handout.generations[place] for place in kept],
            losses=handout.losses and [handout.losses[place] for place in kept],
        ),
        keyless,
        damaged,
    )
