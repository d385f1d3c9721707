"""The service Topics: settings of topics, and what is in them. Decides nothing."""

from __future__ import annotations

from collections.abc import Callable

from txmsg.access.permissions import DESCRIBE_GROUP, DESCRIBE_TOPIC
from txmsg.broker.store.topic_settings import TopicChange, TopicSettings, TopicSettingsRow
from txmsg.message import check_name, us_of_datetime
from txmsg.wire.caller import may, names_for
from txmsg.wire.v1 import topics_pb2 as pb

_CHANGES = (
    "queues",
    "write_queues",
    "read_queues",
    "ordered_queues",
    "permission",
    "durability",
    "unread",
    "message_type",
    "send_rate_max",
    "journal",
    "erasable_s",
)


class TopicsApi:
    """The service Topics. retention_s: of this broker, now."""

    def __init__(self, topics: TopicSettings, retention_s: Callable[[], float]) -> None:
        self._topics = topics
        self._retention_s = retention_s

    async def list(self, request: pb.ListTopicSettingsRequest) -> pb.ListTopicSettingsReply:
        limit = min(request.limit or 1000, 10_000)
        rows = await self._topics.list(
            limit + 1, after=request.after, contains=request.contains, names=names_for(DESCRIBE_TOPIC)
        )
        found = [
            pb.TopicSummary(settings=_topic(row.settings), kept=row.kept, entered=row.entered) for row in rows[:limit]
        ]
        return pb.ListTopicSettingsReply(topics=found, next=rows[limit - 1].settings.name if len(rows) > limit else "")

    async def show(self, request: pb.ShowTopicRequest) -> pb.ShowTopicReply:
        name = check_name("topic", request.name)
        if request.settings_only:
            return pb.ShowTopicReply(topic=_topic(await self._topics.settings(name)))
        found = await self._topics.show(name)
        return pb.ShowTopicReply(
            topic=_topic(found.settings),
            queues=[pb.TopicQueue(number=queue.number, begin=queue.begin, end=queue.end) for queue in found.queues],
            segments=[
                pb.TopicSegment(
                    id=segment.id,
                    opened_at_us=us_of_datetime(segment.opened_at),
                    closed_at_us=us_of_datetime(segment.closed_at) if segment.closed_at else 0,
                    messages=segment.messages,
                )
                for segment in found.segments
            ],
            groups=[
                pb.TopicGroup(group=group.group_name, waiting=group.waiting, retrying=group.retrying, dead=group.dead)
                for group in found.groups
                if may(DESCRIBE_GROUP, group.group_name)
            ],
            halves=found.halves,
            scheduled=found.scheduled,
            retention_s=self._retention_s(),
        )

    async def alter(self, request: pb.AlterTopicRequest) -> pb.AlterTopicReply:
        name = check_name("topic", request.name)
        change = TopicChange(**{field: getattr(request, field) for field in _CHANGES if request.HasField(field)})
        return pb.AlterTopicReply(topic=_topic(await self._topics.alter(name, change)))

    async def delete(self, request: pb.DeleteTopicRequest) -> pb.DeleteTopicReply:
        name = check_name("topic", request.name)
        await self._topics.delete(name, force=request.force, dry_run=request.dry_run)
        return pb.DeleteTopicReply()


def _topic(row: TopicSettingsRow) -> pb.TopicSettings:
    return pb.TopicSettings(
        name=row.name,
        queues=row.queue_count,
        write_queues=row.write_queues,
        read_queues=row.read_queues,
        ordered_queues=row.ordered_queues,
        permission=row.permission,
        durability=row.durability,
        unread=row.unread,
        message_type=row.message_type,
        send_rate_max=row.send_rate_max or 0,
        journal_since_us=us_of_datetime(row.journal_since) if row.journal_since else 0,
        erasable_s=row.erasable_s or 0,
        created_at_us=us_of_datetime(row.created_at),
        version=row.version,
    )
