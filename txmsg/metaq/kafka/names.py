"""Topics of txmsg as topics of Kafka, and back. Pure.

Kafka's names cannot contain `%`. The retries and dead letters of a group are the topics `GROUP.txmsg-retry` and
`GROUP.txmsg-dlq`, so an ordinary topic's name must not end like these. For the group GROUP%INSTANCE of a broadcasting
member they are `GROUP.txmsg-at.INSTANCE.txmsg-retry` and so on. A prefix, if any, precedes the name.
"""

from __future__ import annotations

import re
from typing import Final

from txmsg.errors import InvalidName
from txmsg.message import is_name
from txmsg.metaq.interface import DEAD_LETTERS, RETRIES

SUFFIXES: Final = {RETRIES: ".txmsg-retry", DEAD_LETTERS: ".txmsg-dlq"}
"""The prefixes of groups' topics, and the suffixes that Kafka's names have instead."""
_PERCENT: Final = ".txmsg-at."
_LEGAL: Final = re.compile(r"[A-Za-z0-9._-]+\Z")
_SIZE_MAX: Final = 249
MIRROR: Final = "txmsg-mirror"
"""The name of the mirror under each prefix: of its transactions, and of the group that stores its progress."""
INTERNAL: Final = "__"
"""The prefix of the names of Kafka's own topics."""


def kafka_name(topic: str, prefix: str = "") -> str:
    """Return the Kafka topic in which a topic is stored. Raises InvalidName for a name that Kafka does not allow."""
    name = topic
    for mark, suffix in SUFFIXES.items():
        if topic.endswith(suffix):
            raise InvalidName(
                f"topic {topic!r} ends in {suffix}, which in Kafka names a topic of a group: choose another name"
            )
        if topic.startswith(mark) and _PERCENT not in topic:
            name = topic.removeprefix(mark).replace("%", _PERCENT) + suffix
    whole = prefix + name
    if not _LEGAL.match(whole) or len(whole) > _SIZE_MAX or whole in {".", ".."}:
        raise InvalidName(
            f"topic {topic!r} would be {whole!r} in Kafka, which is not a valid name there: use 1 to {_SIZE_MAX} of "
            "the characters A-Z a-z 0-9 . _ -"
        )
    return whole


def topic_of(name: str, prefix: str = "") -> str | None:
    """Return the topic of a Kafka topic, the inverse of `kafka_name`.

    None for another prefix, or without a valid txmsg name.
    """
    if not name.startswith(prefix):
        return None
    topic = name.removeprefix(prefix)
    for mark, suffix in SUFFIXES.items():
        if topic.endswith(suffix):
            topic = mark + topic.removesuffix(suffix).replace(_PERCENT, "%")
            break
    return topic if is_name(topic) and topic not in SUFFIXES else None
