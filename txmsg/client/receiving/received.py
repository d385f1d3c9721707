"""Messages from the wire as values. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import repeat
from typing import Any

from txmsg.errors import ProtocolError, shown
from txmsg.message import ReceivedMessage
from txmsg.wire.codec import slices_of_ids, unpack_headers
from txmsg.wire.v1.txmsg_pb2 import Check, DeliveredColumns

_NO_HEADERS: Mapping[str, str] = unpack_headers(b"")


def delivered(columns: DeliveredColumns) -> tuple[list[ReceivedMessage], dict[int, ProtocolError]]:
    """Return the messages of one queue, and errors of unreadable ones by offset.

    Raises ProtocolError for columns that no broker of this protocol sends.
    """
    _check_columns(columns)
    unreadable: dict[int, ProtocolError] = {}
    rows: Iterable[tuple[Any, ...]] = zip(
        repeat(columns.topic),
        columns.body,
        [key or None for key in columns.key] or repeat(None),
        [tag or None for tag in columns.tag] or repeat(None),
        _headers(columns, unreadable) if columns.headers else repeat(_NO_HEADERS),
        repeat(columns.queue),
        columns.receipt.offset,
        columns.attempt or repeat(1),
        slices_of_ids(columns.transaction_id),
        columns.n or repeat(0),
        columns.born_at_us,
        columns.stored_at_us,
        [key or None for key in columns.ordering_key] or repeat(None),
        columns.generation or repeat(0),
        repeat(None),
        strict=False,  # `repeat` has no end
    )
    messages: list[ReceivedMessage] = list(map(ReceivedMessage._make, rows))
    if unreadable:
        messages = [message for message in messages if message.offset not in unreadable]
    return messages, unreadable


def _check_columns(columns: DeliveredColumns) -> None:
    count = len(columns.body)
    full = (columns.receipt.offset, columns.born_at_us, columns.stored_at_us)
    sparse = (
        *(columns.n, columns.key, columns.tag, columns.headers),
        *(columns.attempt, columns.ordering_key, columns.generation, columns.losses),
    )
    if (
        len(columns.transaction_id) != 16 * count
        or any(len(column) != count for column in full)
        or any(len(column) not in (0, count) for column in sparse)
    ):
        raise ProtocolError(f"the columns of {count} messages of topic {shown(columns.topic)} differ in length")


def _headers(columns: DeliveredColumns, unreadable: dict[int, ProtocolError]) -> Iterable[Mapping[str, str]]:
    for offset, packed in zip(columns.receipt.offset, columns.headers, strict=True):
        try:
            yield unpack_headers(packed) if packed else _NO_HEADERS
        except ProtocolError as exc:
            unreadable[offset] = exc
            yield _NO_HEADERS


def checked(check: Check) -> ReceivedMessage:
    """Return the message that a check-back shows to the listener. It is in no queue yet.

    Raises ProtocolError for one that no broker of this protocol sends.
    """
    if len(check.transaction_id) != 16:
        raise ProtocolError(f"a transaction id has 16 bytes, not {len(check.transaction_id)}")
    return ReceivedMessage(
        topic=check.topic,
        body=check.body,
        key=check.key or None,
        tag=check.tag or None,
        headers=unpack_headers(check.headers),
        attempt=check.attempt,
        id_bytes=check.transaction_id,
        born_at_us=check.born_at_us,
        stored_at_us=check.stored_at_us,
    )
