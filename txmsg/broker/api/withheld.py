"""Error texts of handlers, which may quote a message: shown only to callers who may read its topic."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TypeVar

from txmsg.administration.dead_letters import DeadLetter
from txmsg.administration.groups import PendingRetry
from txmsg.broker.store.failures import EXPIRED
from txmsg.wire.access.permissions import READ_TOPIC
from txmsg.wire.caller import may

MessageT = TypeVar("MessageT", PendingRetry, DeadLetter)


def error_of(topic: str, text: str | None) -> str:
    """Return the error text of a message of this topic, or that it is withheld; "" if there is none."""
    # The broker's own text quotes nothing.
    if not text or text == EXPIRED or may(READ_TOPIC, topic):
        return text or ""
    return f"withheld, as it may quote the message: reading needs the right `read` on topic {topic}"


def error_of_any(topics: Iterable[str], text: str) -> str:
    """Return an error text of one of these topics, or that it is withheld; without topics, of any topic."""
    told = (error_of(topic, text) for topic in list(topics) or ["*"])
    return next((each for each in told if each != text), text)


def told(message: MessageT) -> MessageT:
    """Return a failed message without the error texts that the caller may not read."""
    topic = message.topic
    failures = [replace(each, error=error_of(topic, each.error)) for each in message.failures]
    return replace(message, last_error=error_of(topic, message.last_error) or None, failures=failures)
