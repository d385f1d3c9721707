"""The steps of messages on their way out of an application."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from txmsg.errors import MisuseError, shown
from txmsg.message import Message, ReceivedMessage

if TYPE_CHECKING:
    from txmsg.message.encryption import Encryption

OnSend = Callable[[Message], Message]


class Outgoing:
    """Stands in for a producer's encryption: functions that each message passes on its way, then the encryption.

    functions: read at each call; the application may add to them.
    """

    def __init__(self, functions: Sequence[OnSend], encryption: Encryption | None) -> None:
        self._functions = functions
        self._encryption = encryption

    def encrypt(self, message: Message) -> Message:
        """Return the message to be sent instead. Raises the functions' exceptions."""
        for function in self._functions:
            message = function(message)
            if not isinstance(message, Message):
                raise MisuseError(f"a function of @app.on_send returned {shown(message)}: return the Message to send")
        return message if self._encryption is None else self._encryption.encrypt(message)

    def decrypt(self, message: ReceivedMessage) -> ReceivedMessage:
        """Decrypt as the encryption does, for a check listener."""
        return message if self._encryption is None else self._encryption.decrypt(message)
