"""Asking a broker: what the calls of administration have in common."""

from __future__ import annotations

import getpass
import os
import socket
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from txmsg.errors import MisuseError, shown
from txmsg.message import datetime_of_us
from txmsg.wire.method import Method, ReplyT, RequestT

ProtobufT = TypeVar("ProtobufT", bound=Message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Nothing:
    """A request that asks for all there is, or a reply that says only that it is done."""


class Ask(Protocol):
    """Calls a broker."""

    def __call__(self, method: Method[RequestT, ReplyT], request: RequestT) -> ReplyT:
        """The reply to one call. Raises the errors of errors.py."""
        ...


def changer() -> str:
    """Who changes something here: the user of this process, at this machine. As long as brokers take at most."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # KeyError until Python 3.12; a container may run under an id that has no name
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"[:200]


def moment(us: int) -> datetime | None:
    """Microseconds since 1970, which are 0 where nothing is known."""
    return datetime_of_us(us) if us else None


_MOST: Final = {FieldDescriptor.TYPE_UINT32: 2**32 - 1, FieldDescriptor.TYPE_UINT64: 2**64 - 1}


def new_request(of: type[ProtobufT], **fields: Any) -> ProtobufT:
    """A request with numbers that users gave. Raises MisuseError for one that its field cannot hold."""
    for name, value in fields.items():
        most = _MOST.get(of.DESCRIPTOR.fields_by_name[name].type)
        if most is not None and value is not None and not (isinstance(value, int) and 0 <= value <= most):
            raise MisuseError(f"{name}={shown(value)} must be a whole number from 0 to {most}")
    return of(**fields)
