"""The value a producer holds between the half message and the outcome."""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from txmsg.message import TransactionId

__all__ = ["Half"]


class Half(NamedTuple):
    """A transaction whose half messages are on disk and whose outcome is still to be told.

    home is the Notify database that holds them. One is made per transaction on the hot path: hence a NamedTuple, and
    the id as bytes, of which a UUID is made when somebody asks for it.
    """

    id_bytes: bytes
    home: bytes

    @property
    def transaction_id(self) -> TransactionId:
        """The id of the transaction, and with `message_id` those of its messages."""
        return TransactionId(UUID(bytes=self.id_bytes))
