"""Messages of applications as columns of a log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from txmsg.errors import InvalidMessage
from txmsg.message import Message, new_transaction_id_bytes, now_us
from txmsg.metaq.format.frame import Columns
from txmsg.wire.headers import pack_headers

__all__ = ["columns_of"]

_COUNT_MAX = 65_536
_SIZE_BYTES_MAX = 16 * 1024 * 1024


def columns_of(messages: Sequence[Message]) -> Iterator[Columns]:
    """Messages of one topic, each with a new id. What is too much for one frame becomes several.

    Raises InvalidMessage for a delayed message.
    """
    for message in messages:
        if message.is_delayed:
            raise InvalidMessage(
                f"a message for topic {message.topic!r} is delayed, and a log holds nothing back: append it "
                "when it is due"
            )
    return map(_columns, _batches(messages))


def _batches(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    start = size = 0
    for place, message in enumerate(messages):
        size += len(message.body)
        if place > start and (size > _SIZE_BYTES_MAX or place - start == _COUNT_MAX):
            yield messages[start:place]
            start, size = place, len(message.body)
    yield messages[start:]


def _columns(messages: Sequence[Message]) -> Columns:
    return Columns(
        bodies=[each.body for each in messages],
        stored_at_us=[now_us()],
        transaction_ids=b"".join(new_transaction_id_bytes() for _ in messages),
        keys=[each.key or "" for each in messages],
        tags=[each.tag or "" for each in messages],
        ordering_keys=[each.ordering_key or "" for each in messages],
        headers=[pack_headers(each.headers) for each in messages],
    )
