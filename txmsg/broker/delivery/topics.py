"""The topic registry as delivery needs it: ids and numbers of queues."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from txmsg.broker.store.topics import StoredTopic, TopicRegistry
from txmsg.errors import TxmsgError


class DeliveryTopics:
    """Queues of topics. Implements delivery.values.Topics."""

    def __init__(self, topics: TopicRegistry) -> None:
        self._topics = topics

    async def ensure(self, topic: str) -> Sequence[tuple[int, int]]:
        return _numbered(await self._topics.ensure(topic))

    async def make_missing(self, topics: Collection[str]) -> Mapping[str, TxmsgError]:
        return await self._topics.make_missing(topics)

    async def find_queues(self, topic: str) -> Sequence[tuple[int, int]]:
        found = await self._topics.find_topic(topic)
        return [] if found is None else _numbered(found)

    async def is_erasable(self, topic: str) -> bool:
        found = await self._topics.find_topic(topic)
        return found is not None and found.erasable_s is not None


def _numbered(topic: StoredTopic) -> list[tuple[int, int]]:
    return [(queue_id, number) for number, queue_id in enumerate(topic.readable_queue_ids)]
