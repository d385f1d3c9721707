"""The topics that members name by patterns, looked up periodically while any member asks for them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

from txmsg.broker.delivery.state import DeliveryState
from txmsg.broker.store import consumer_groups as groups_store
from txmsg.errors import InvalidMessage
from txmsg.message.typed.names import is_pattern, matches, prefix_of
from txmsg.runtime.logs import EventLog
from txmsg.wire.tags import TagExpression

_log = EventLog(__name__)

_PATTERNS_MAX: Final = 1000
"""Maximum number of patterns: each is compared with each topic at each look-up."""
_WANTED_MAX: Final = 512


def patterns_of(wants: Mapping[str, TagExpression]) -> frozenset[str]:
    """Return those of the names that are patterns."""
    return frozenset(each for each in wants if is_pattern(each))


def _key_of(asked: Mapping[str, TagExpression]) -> tuple[tuple[str, str], ...]:
    return tuple((topic, str(tags)) for topic, tags in asked.items())


class Patterns:
    """The topics of each pattern that was asked for within the time in which a member counts as present.

    waiting: returns the patterns of members that wait for messages, perhaps for longer than that. on_change: called
    with the patterns that match other topics than before.
    """

    def __init__(
        self,
        state: DeliveryState,
        waiting: Callable[[], Collection[str]],
        on_change: Callable[[Collection[str]], object],
    ) -> None:
        self._state = state
        self._waiting = waiting
        self._on_change = on_change
        self._asked_at: dict[str, float] = {}
        self._topics: dict[str, tuple[str, ...]] = {}
        self._wanted: dict[tuple[tuple[str, str], ...], Mapping[str, TagExpression]] = {}
        """Results by request, built again when matching topics have changed: a member asks alike with each receive."""
        self.newest = 0
        """The highest id of a topic at the last look-up: topics with a higher one were created later."""

    async def wanted(self, asked: Mapping[str, TagExpression]) -> Mapping[str, TagExpression]:
        """Return a request with each pattern replaced by the names of the topics that it matches.

        A topic has the tags given for its name, or else for its longest pattern. Raises BrokerUnavailable, and
        InvalidMessage for more than _PATTERNS_MAX patterns.
        """
        now, patterns = self._state.monotonic(), patterns_of(asked)
        if len(self._asked_at | dict.fromkeys(patterns)) > _PATTERNS_MAX:
            raise InvalidMessage(
                f"members of groups name {len(self._asked_at)} patterns of topics at this broker already, of which at "
                f"most {_PATTERNS_MAX} are allowed: name topics, or shorter prefixes that they have in common"
            )
        self._asked_at |= dict.fromkeys(patterns, now)
        # In a loop: a look-up that another call has begun before may replace the topics by those without the new
        # patterns.
        while not self._topics.keys() >= patterns:
            await self._match_topics()
        if len(self._wanted) >= _WANTED_MAX:
            self._wanted.clear()
        key = _key_of(asked)
        if key not in self._wanted:
            self._wanted[key] = self._matched(asked)
        return self._wanted[key]

    def is_current(self, asked: Mapping[str, TagExpression], wants: Mapping[str, TagExpression]) -> bool:
        """Return True if `wants` is still the result of `wanted`: topics may have been created in the meantime."""
        return self._wanted.get(_key_of(asked)) == wants

    def _matched(self, asked: Mapping[str, TagExpression]) -> Mapping[str, TagExpression]:
        found: dict[str, TagExpression] = {}
        # By length, so that the longest pattern that matches a topic is applied last and wins.
        for pattern in sorted(patterns_of(asked), key=len):
            found |= dict.fromkeys(self._topics[pattern], asked[pattern])
        return found | {topic: tags for topic, tags in asked.items() if not is_pattern(topic)}

    async def look_once(self) -> None:
        """Look for topics that were created since, and forget patterns that no member asks for any more."""
        now = self._state.monotonic()
        self._asked_at |= dict.fromkeys(self._waiting(), now)
        since = now - self._state.config.member_ttl_s
        self._asked_at = {pattern: at for pattern, at in self._asked_at.items() if at >= since}
        if not self._asked_at:  # without look-ups the known topics get old: the next request has to look
            self._topics, self._wanted = {}, {}
        elif self._state.leases.is_held():
            await self._match_topics()

    async def _match_topics(self) -> None:
        asked = list(self._asked_at)
        async with self._state.session() as conn:
            newest, names = await groups_store.topics_with(conn, list(map(prefix_of, asked)))
        topics = {pattern: tuple(name for name in names if matches(pattern, name)) for pattern in asked}
        changed = [pattern for pattern, found in topics.items() if self._topics.get(pattern, found) != found]
        if changed or topics.keys() != self._topics.keys():
            self._wanted.clear()
        self._topics, self.newest = topics, newest
        if changed:
            _log.info(
                "delivery.topics_matched", "there are other topics now of %(patterns)s", patterns=", ".join(changed)
            )
            self._on_change(changed)
