"""Calls of a broker, common to all of administration."""

from __future__ import annotations

import getpass
import os
import socket
from dataclasses import dataclass
from typing import Protocol

from txmsg.wire.method import Method, ReplyT, RequestT


@dataclass(frozen=True, slots=True, kw_only=True)
class Nothing:
    """A request without parameters, or a reply without a value."""


class AskBroker(Protocol):
    """Calls a broker."""

    def __call__(self, method: Method[RequestT, ReplyT], request: RequestT) -> ReplyT:
        """Call the method and return its reply. Raises the errors of errors.py."""
        ...


def changer() -> str:
    """Return the author of a change: USER@HOST of this process, cut to the 200 characters that brokers accept."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # KeyError until Python 3.12; a container may run under an id that has no name
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"[:200]
