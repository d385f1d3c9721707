"""Strings that RocketMQ's clients use: message ids and receipt handles. Pure."""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple, Self

from txmsg.errors import shown
from txmsg.message import ReceivedMessage
from txmsg.rocketmq.status import CallRefused
from txmsg.rocketmq.v2 import messaging_pb2 as pb
from txmsg.wire.v1.txmsg_pb2 import Receipt

ID_HEADER = "rocketmq.id"
"""The header with the id that a client gave its message, if it is not the usual text of the transaction id."""

_V1 = re.compile(r"01[0-9A-Fa-f]{32}")
_ID_LENGTH_MAX = 255
_HANDLE = re.compile(r"([0-9]{1,20})\.([0-9a-f]{1,16})\.([0-9]{1,20})\.([0-9]{1,20})([ps])@(.+)", re.DOTALL)
_NUMBER_MAX = 2**64


def transaction_of_id(text: str, what: str = "message id", code: pb.Code = pb.ILLEGAL_MESSAGE_ID) -> bytes:
    """Return the 16-byte transaction id for a message id: the bytes in it, or for an id of another form its digest.

    So a send that is repeated with the same id is the same message. Raises CallRefused with this code.
    """
    if not text.strip() or len(text) > _ID_LENGTH_MAX or "\0" in text:
        raise CallRefused(
            code, f"{what} {shown(text)} is blank, or longer than {_ID_LENGTH_MAX} characters, or has a NUL"
        )
    if _V1.fullmatch(text):
        return bytes.fromhex(text[2:])
    return hashlib.sha256(text.encode()).digest()[:16]


def usual_id(transaction_id: bytes) -> str:
    """Return the message id that most clients derive from these bytes."""
    return f"01{transaction_id.hex().upper()}"


def id_of(message: ReceivedMessage) -> str:
    """Return the id of a message as RocketMQ's clients see it: the one that its sender gave it."""
    if given := message.headers.get(ID_HEADER):
        return given
    return message.id if message.n else usual_id(message.id_bytes)


class Handle(NamedTuple):
    """One delivery of one message to one consumer, with the broker that delivered it. Any gateway can use it.

    broker: its name, which is the same at every gateway.

    is_renewed: it was delivered to a push consumer, which sets another invisible duration only to refuse the message. A
    simple consumer keeps the message for its invisible duration.
    """

    broker: str
    queue_id: int
    token: int
    epoch: int
    offset: int
    is_renewed: bool

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the result of `str`. Raises CallRefused for any other text."""
        found = _HANDLE.fullmatch(text)
        if found is not None:
            queue_id, token, epoch, offset = int(found[1]), int(found[2], 16), int(found[3]), int(found[4])
            if max(queue_id * 2**32, token, epoch, offset) < _NUMBER_MAX:
                return cls(found[6], queue_id, token, epoch, offset, found[5] == "p")
        raise CallRefused(pb.INVALID_RECEIPT_HANDLE, f"receipt handle {text[:100]!r} is none that this server gives")

    def __str__(self) -> str:
        kind = "p" if self.is_renewed else "s"
        return f"{self.queue_id}.{self.token:x}.{self.epoch}.{self.offset}{kind}@{self.broker}"

    @property
    def delivery(self) -> tuple[int, int, int, int]:
        """The delivery's identity at its broker."""
        return self.queue_id, self.token, self.epoch, self.offset

    @property
    def receipt(self) -> Receipt:
        """The handle as a receipt for the broker."""
        return Receipt(queue_id=self.queue_id, token=self.token, epoch=self.epoch, offset=[self.offset])
