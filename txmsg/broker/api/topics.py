"""The service Topics: settings of topics, and their contents. Decides what a caller may see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from txmsg.administration.ask import Nothing
from txmsg.administration.topics import (
    AlterTopic,
    CreatedTopic,
    CreateTopic,
    DeleteTopic,
    TopicDetails,
    TopicName,
    TopicPage,
    TopicQuery,
    TopicWithSettings,
)
from txmsg.broker.store.topic_settings import TopicAdministration
from txmsg.broker.store.topics import TopicRegistry
from txmsg.wire.access.permissions import DESCRIBE_GROUP, DESCRIBE_TOPIC
from txmsg.wire.caller import may, names_for


class TopicsApi:
    """The service Topics. retention_s: returns the broker's present setting."""

    def __init__(self, registry: TopicRegistry, topics: TopicAdministration, retention_s: Callable[[], float]) -> None:
        self._registry = registry
        self._topics = topics
        self._retention_s = retention_s

    async def create(self, request: CreateTopic) -> CreatedTopic:
        return await self._registry.create(request)

    async def list(self, request: TopicQuery) -> TopicPage:
        return await self._topics.list(request, names=names_for(DESCRIBE_TOPIC))

    async def show(self, request: TopicName) -> TopicDetails:
        found = await self._topics.show(request.topic, retention_s=self._retention_s())
        # Groups that the caller may not see are left out; the other figures count them.
        return replace(found, groups=[each for each in found.groups if may(DESCRIBE_GROUP, each.group)])

    async def settings(self, request: TopicName) -> TopicWithSettings:
        return await self._topics.settings(request.topic)

    async def alter(self, request: AlterTopic) -> TopicWithSettings:
        return await self._topics.alter(request.topic, request.change)

    async def delete(self, request: DeleteTopic) -> Nothing:
        await self._topics.delete(request.topic, force=request.force, dry_run=request.dry_run)
        return Nothing()
