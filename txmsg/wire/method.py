"""Methods that can be called: their names on the wire, and their request and reply types.

Where messages flow, the types are of Protobuf; those of administration are dataclasses in JSON (see values.py).
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
    """A method of a service.

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
        """True if its messages are dataclasses."""
        return not issubclass(self.request, Message)


def methods_of(service: type) -> dict[str, Method[Any, Any]]:
    """Return the methods of a service by their names in Python. service: the class that lists them."""
    return {name: method for name, method in vars(service).items() if isinstance(method, Method)}


def packed(message: object) -> bytes:
    """Return the bytes of a request or a reply."""
    return message.SerializeToString() if isinstance(message, Message) else values.packed(message)


def checked(request: MessageT) -> MessageT:
    """Return a request that is about to be sent. Raises MisuseError for a value that its field cannot have."""
    if not isinstance(request, Message):
        values.check(request)
    return request


def unpacked(kind: type[MessageT], data: Buffer, *, strict: bool = False) -> MessageT:
    """Return the request or reply in these bytes; the inverse of `packed`. strict: refuse unknown fields of JSON.

    Raises Protobuf's DecodeError and RecursionError; ProtocolError for JSON, and InvalidName for a NUL in its texts.
    """
    if issubclass(kind, Message):
        return kind.FromString(data)  # type: ignore[arg-type]  # it takes any buffer
    return values.unpacked(kind, bytes(data), strict=strict)
