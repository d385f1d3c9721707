"""The columns of messages to be stored, to and from the protocol's. Clients and brokers convert each request once."""

from __future__ import annotations

from typing import Final

from txmsg.message.columns import COLUMNS, OF_BROKER, OF_PLAIN, Columns
from txmsg.wire.codec import slices_of_ids
from txmsg.wire.v1.txmsg_pb2 import MessageColumns

_APART: Final = OF_BROKER | {"transaction_id"}
_OF_HALF: Final = [column.name for column in COLUMNS if column.name not in _APART]
_OF_PLAIN: Final = [column.name for column in OF_PLAIN if column.name not in _APART]


def packed_columns(topic: str, columns: Columns) -> MessageColumns:
    """Return the messages of a topic in the form of a request. A column without values is left out."""
    values = {name: getattr(columns, name) or None for name in _OF_HALF}
    return MessageColumns(topic=topic, transaction_id=b"".join(columns.transaction_id), **values)


def columns_of(batch: MessageColumns, *, is_half: bool) -> Columns:
    """Return the messages of a request as lists: Protobuf would decode a text each time it is read.

    Raises ProtocolError when the ids do not divide. Other columns may still differ in length.
    """
    names = _OF_HALF if is_half else _OF_PLAIN
    return Columns(
        transaction_id=slices_of_ids(batch.transaction_id), **{name: list(getattr(batch, name)) for name in names}
    )
