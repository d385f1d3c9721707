"""Types of messages, as RocketMQ has them: a topic may take messages of one type only. Pure."""

from __future__ import annotations

from typing import Final

ANY_TYPE: Final = "any"
MESSAGE_TYPES: Final = (ANY_TYPE, "normal", "fifo", "delay", "transaction")
"""What a topic may take."""


def type_of_message(*, is_half: bool, ordering_key: str, is_delayed: bool) -> str:
    """The type of one message. Of a transaction is what is sent as a half message, whatever else it has."""
    if is_half:
        return "transaction"
    if is_delayed:
        return "delay"
    return "fifo" if ordering_key else "normal"
