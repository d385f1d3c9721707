"""Names of subscriptions: one topic, or a prefix and `*`, as in rules of access."""

from __future__ import annotations

from txmsg.message import check_name


def is_pattern(text: str) -> bool:
    """Return True for a pattern of all topics with a prefix: `order.*`, or `*` for all."""
    return text.endswith("*")


def check_topics(text: object) -> str:
    """Return the text if it names a topic, or is a prefix and `*`. Raises InvalidName otherwise."""
    if isinstance(text, str) and is_pattern(text):
        if text != "*":
            check_name("topic", text[:-1])
        return text
    return check_name("topic", text)


def prefix_of(pattern: str) -> str:
    """Return the prefix of a pattern."""
    return pattern.removesuffix("*")


def matches(topics: str, name: str) -> bool:
    """Return True if the name is the topic, or has the pattern's prefix. `*` excludes `%RETRY%GROUP` and the like."""
    if not is_pattern(topics):
        return topics == name
    return name.startswith(prefix_of(topics)) and (topics != "*" or not name.startswith("%"))


def overlap(one: str, other: str) -> bool:
    """Return True if a topic could match both."""
    if is_pattern(one) and is_pattern(other):
        return prefix_of(one).startswith(prefix_of(other)) or prefix_of(other).startswith(prefix_of(one))
    return matches(one, other) or matches(other, one)
