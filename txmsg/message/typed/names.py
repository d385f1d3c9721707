"""What a subscription names: one topic, or all whose names begin with a prefix, as rules of access name them."""

from __future__ import annotations

from txmsg.message import check_name


def is_pattern(text: str) -> bool:
    """Whether it names all topics with a prefix: `order.*`, or `*` for all."""
    return text.endswith("*")


def check_topics(text: object) -> str:
    """Returns the name of a topic, or a prefix and `*`; raises InvalidName for any other text."""
    if isinstance(text, str) and is_pattern(text):
        if text != "*":
            check_name("topic", text[:-1])
        return text
    return check_name("topic", text)


def prefix_of(pattern: str) -> str:
    """What the names begin with."""
    return pattern.removesuffix("*")


def matches(topics: str, name: str) -> bool:
    """Whether this is the topic, or one of those with the prefix. `*` leaves out `%RETRY%GROUP` and the like."""
    if not is_pattern(topics):
        return topics == name
    return name.startswith(prefix_of(topics)) and (topics != "*" or not name.startswith("%"))


def overlap(one: str, other: str) -> bool:
    """Whether a topic could be of both."""
    if is_pattern(one) and is_pattern(other):
        return prefix_of(one).startswith(prefix_of(other)) or prefix_of(other).startswith(prefix_of(one))
    return matches(one, other) or matches(other, one)
