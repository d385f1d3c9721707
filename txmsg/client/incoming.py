"""Messages from the wire as values. Pure."""

from __future__ import annotations

from uuid import UUID

from txmsg.errors import ProtocolError
from txmsg.message import ReceivedMessage, TransactionId, message_id
from txmsg.wire.codec import datetime_of_us, unpack_headers
from txmsg.wire.v1.txmsg_pb2 import Delivered

__all__ = ["received"]


def received(delivered: Delivered, *, attempt: int | None = None) -> ReceivedMessage:
    """The message as an application sees it. `attempt` is given for a check-back, which stands in no queue.

    Raises ProtocolError for one that no broker of this protocol sends.
    """
    if len(delivered.transaction_id) != 16:
        raise ProtocolError(f"a transaction id has 16 bytes, not {len(delivered.transaction_id)}")
    transaction_id = TransactionId(UUID(bytes=delivered.transaction_id))
    return ReceivedMessage(
        id=message_id(transaction_id, delivered.n),
        transaction_id=transaction_id,
        topic=delivered.topic,
        body=delivered.body,
        key=delivered.key or None,
        tag=delivered.tag or None,
        headers=unpack_headers(delivered.headers),
        queue=delivered.queue if attempt is None else None,
        offset=delivered.receipt.offset if attempt is None else None,
        attempt=delivered.attempt if attempt is None else attempt,
        born_at=datetime_of_us(delivered.born_at_us),
        stored_at=datetime_of_us(delivered.stored_at_us),
    )
