"""What can be called: the name of a method on the wire, and the messages it takes and gives.

Where messages flow they are of Protobuf; those of administration are dataclasses in JSON (see values.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from google.protobuf.message import Message

from txmsg.wire import values
from txmsg.wire.frames import Buffer

MessageT = TypeVar("MessageT")
RequestT = TypeVar("RequestT")
ReplyT = TypeVar("ReplyT")


@dataclass(frozen=True, eq=False)
class Method(Generic[RequestT, ReplyT]):
    """One of them.

    name: as SERVICE/METHOD. takes_many: the caller sends messages until it says that it has sent the last one.
    gives_many: replies come until the call ends. takes_data, gives_data: requests, or replies, have data (see data.py).
    """

    name: str
    request: type[RequestT]
    reply: type[ReplyT]
    takes_many: bool = False
    gives_many: bool = False
    takes_data: bool = False
    gives_data: bool = False
    wire_name: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "wire_name", self.name.encode("ascii"))

    @property
    def is_json(self) -> bool:
        """Whether its messages are dataclasses."""
        return not issubclass(self.request, Message)


def methods_of(service: type) -> dict[str, Method[Any, Any]]:
    """The methods of a service by what they are called in Python. service: the class that lists them."""
    return {name: method for name, method in vars(service).items() if isinstance(method, Method)}


def packed(message: object) -> bytes:
    """The bytes of a request or a reply."""
    return message.SerializeToString() if isinstance(message, Message) else values.packed(message)


def checked(request: MessageT) -> MessageT:
    """The request, which is made here. Raises MisuseError for a value that its field cannot have."""
    if not isinstance(request, Message):
        values.check(request)
    return request


def unpacked(kind: type[MessageT], data: Buffer, *, strict: bool = False) -> MessageT:
    """The inverse. strict: fields of JSON that are not known are refused.

    Raises Protobuf's DecodeError and RecursionError; ProtocolError for JSON, and InvalidName for a NUL in its texts.
    """
    if issubclass(kind, Message):
        return kind.FromString(data)  # type: ignore[arg-type]  # it takes any buffer
    return values.unpacked(kind, bytes(data), strict=strict)
