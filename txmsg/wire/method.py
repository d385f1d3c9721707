"""What can be called: the name of a method on the wire, and the messages it takes and gives."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from google.protobuf.message import Message

RequestT = TypeVar("RequestT", bound=Message)
ReplyT = TypeVar("ReplyT", bound=Message)


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


def methods_of(service: type) -> dict[str, Method[Any, Any]]:
    """The methods of a service by what they are called in Python. service: a generated class of a module *_rpc."""
    return {name: method for name, method in vars(service).items() if isinstance(method, Method)}
