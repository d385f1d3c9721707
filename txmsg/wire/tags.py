"""Tag expressions: `*`, or tags joined by `||`. Knows nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from txmsg.errors import InvalidMessage, InvalidName, shown
from txmsg.message import check_tag

__all__ = ["ALL_TAGS", "SUBSCRIPTIONS_LENGTH_MAX", "TagExpression", "parse_tags", "wants_of"]

SUBSCRIPTIONS_LENGTH_MAX = 64 * 1024
"""Characters of topics and tag expressions in one request: a broker remembers them while the member lives."""


@dataclass(frozen=True, slots=True)
class TagExpression:
    """The wanted messages of a topic, by tag. tags None: all, also those without a tag."""

    tags: frozenset[str] | None

    @property
    def is_all(self) -> bool:
        return self.tags is None

    def matches(self, tag: str | None) -> bool:
        """Return True if a message with this tag (None: without one) is wanted."""
        return self.tags is None or tag in self.tags

    @staticmethod
    def union(expressions: Iterable[TagExpression]) -> TagExpression:
        """Return the expression of messages that at least one of the expressions wants."""
        wanted: set[str] = set()
        for expression in expressions:
            if expression.tags is None:
                return ALL_TAGS
            wanted |= expression.tags
        return TagExpression(frozenset(wanted))

    def __str__(self) -> str:
        return "*" if self.tags is None else " || ".join(sorted(self.tags))


ALL_TAGS = TagExpression(None)


def parse_tags(text: str) -> TagExpression:
    """Return the expression in a text: `*` (or nothing) wants all; `a || b` wants messages tagged a or b. Raises
    InvalidName."""
    if not isinstance(text, str):
        raise InvalidName(
            f"tag expression {shown(text)} is of type {type(text).__name__}, not str: give `*`, or tags as in "
            "`signup || import`"
        )
    text = text.strip()
    if text in ("", "*"):
        return ALL_TAGS
    names = [name.strip() for name in text.split("||")]
    if "*" in names:
        raise InvalidName(f"tag expression {shown(text)}: `*` cannot be combined with tags; leave out one of them")
    if "" in names:
        raise InvalidName(f"tag expression {shown(text)} has nothing beside a `||`: write it as in `signup || import`")
    if any("|" in name for name in names):
        raise InvalidName(f"tag expression {shown(text)}: tags are joined by ||, as in `signup || import`")
    # Tried by users of other filter languages; without this check it would be a tag that no message has.
    if any("&&" in name for name in names):
        raise InvalidName(f"tag expression {shown(text)}: a message has one tag, so there is no `&&`; use ||")
    return TagExpression(frozenset(map(check_tag, names)))


@lru_cache(maxsize=512)
def wants_of(subscriptions: tuple[tuple[str, str], ...]) -> Mapping[str, TagExpression]:
    """Return the wanted messages of each topic, given (topic, tag expression). For a topic named twice: the union.

    Cached, because a consumer subscribes alike with each receive: do not change the mapping. Raises InvalidMessage
    past SUBSCRIPTIONS_LENGTH_MAX.
    """
    length = sum(len(topic) + len(tags) for topic, tags in subscriptions)
    if length > SUBSCRIPTIONS_LENGTH_MAX:
        raise InvalidMessage(
            f"subscriptions of {length} characters: at most {SUBSCRIPTIONS_LENGTH_MAX} are allowed; name fewer topics "
            "or tags in one consumer"
        )
    wants: dict[str, TagExpression] = {}
    for topic, tags in subscriptions:
        expression = parse_tags(tags)
        wants[topic] = TagExpression.union((wants[topic], expression)) if topic in wants else expression
    return wants
