"""The value a producer holds between the half message and the outcome."""

from __future__ import annotations

from typing import NamedTuple

from txmsg.message import TransactionId

__all__ = ["Half"]


class Half(NamedTuple):
    """A transaction whose half messages are on disk and whose outcome is still to be told.

    home is the Notify database that holds them. A NamedTuple: one is made per transaction on the hot path.
    """

    transaction_id: TransactionId
    home: bytes
