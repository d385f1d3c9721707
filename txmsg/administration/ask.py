"""Asking a broker: what the calls of administration have in common."""

from __future__ import annotations

import getpass
import os
import socket
from dataclasses import dataclass
from typing import Protocol

from txmsg.wire.method import Method, ReplyT, RequestT


@dataclass(frozen=True, slots=True, kw_only=True)
class Nothing:
    """A request that asks for all there is, or a reply that says only that it is done."""


class AskBroker(Protocol):
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
