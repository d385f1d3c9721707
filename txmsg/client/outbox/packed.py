"""Messages <-> the text of a row: a SendRequest, as a broker would have been sent, in base64. Pure."""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from collections.abc import Sequence
from datetime import timedelta

from google.protobuf.message import DecodeError

from txmsg.client.sending.batch import SendEntry, columns_of
from txmsg.errors import ProtocolError
from txmsg.message import Message, TransactionId, datetime_of_us
from txmsg.wire.headers import unpack_headers
from txmsg.wire.v1.txmsg_pb2 import MessageColumns, SendRequest


def packed(transaction_id: TransactionId, messages: Sequence[Message]) -> str:
    """Return messages as the text of a row. A delay counts from now. Raises InvalidMessage and MessageTooLarge, as
    sending does."""
    entry = SendEntry(transaction_id.bytes, messages, None)
    return b64encode(SendRequest(batches=columns_of([entry])).SerializeToString()).decode()


def unpacked(text: str, now_us: int) -> tuple[list[Message], int]:
    """Return the messages in their order, and the time of their birth. Raises ProtocolError.

    now_us: by this machine's clock. A delay is shorter by the time since the birth of its message.
    """
    try:
        request = SendRequest.FromString(b64decode(text, validate=True))
        placed = [
            (columns.n[row] if columns.n else 0, _message(columns, row, now_us), columns.born_at_us[row])
            for columns in request.batches
            for row in range(len(columns.body))
        ]
    except (DecodeError, binascii.Error, IndexError) as exc:
        raise ProtocolError(f"{len(text)} characters of the outbox are not messages") from exc
    if not placed:
        raise ProtocolError(f"{len(text)} characters of the outbox hold no message")
    placed.sort(key=lambda each: each[0])
    return [message for _, message, _ in placed], placed[0][2]


def _message(columns: MessageColumns, row: int, now_us: int) -> Message:
    deliver_at_us = columns.deliver_at_us[row] if columns.deliver_at_us else 0
    deliver_after_us = columns.deliver_after_us[row] if columns.deliver_after_us else 0
    waited_us = max(0, now_us - columns.born_at_us[row])
    return Message(
        columns.topic,
        columns.body[row],
        key=(columns.key[row] if columns.key else "") or None,
        tag=(columns.tag[row] if columns.tag else "") or None,
        headers=unpack_headers(columns.headers[row] if columns.headers else None),
        ordering_key=(columns.ordering_key[row] if columns.ordering_key else "") or None,
        deliver_at=datetime_of_us(deliver_at_us) if deliver_at_us else None,
        deliver_after=timedelta(microseconds=max(0, deliver_after_us - waited_us)) if deliver_after_us else None,
    )
