"""Administration of the topics of a Notify database, by the services Topics and Admin of any of its brokers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Final

from txmsg.administration.ask import Ask, moment, new_request
from txmsg.message import ANY_TYPE
from txmsg.wire.v1 import topics_pb2 as pb
from txmsg.wire.v1 import txmsg_pb2
from txmsg.wire.v1.topics_rpc import Topics
from txmsg.wire.v1.txmsg_rpc import Admin

PERMISSIONS: Final = {"rw": 6, "r": 4, "w": 2, "none": 0}
"""Whether messages may be sent (w) and delivered (r), and what the protocol calls it."""
_NAMES_OF_PERMISSIONS: Final = {number: name for name, number in PERMISSIONS.items()}
DURABILITIES: Final = ("replicated", "sync", "async", "memory")
UNREAD: Final = ("keep", "drop")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """A topic with its settings. send_rate_max None: unlimited."""

    topic: str
    queues: int
    write_queues: int
    read_queues: int
    ordered_queues: int
    permission: str
    durability: str
    unread: str
    message_type: str
    """Of the messages that it takes: one of MESSAGE_TYPES."""
    send_rate_max: float | None
    journal_since: datetime | None
    """When its journal was switched on; None: it is off."""
    erasable_s: float | None
    """For how long keys of its bodies are kept; None: they are not encrypted."""
    created_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSummary:
    """A topic, how many messages are in its queues, and how many have ever entered them."""

    settings: TopicSettings
    kept: int
    entered: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPage:
    """Topics by name. next: what names the page after this one; None for the last one."""

    topics: Sequence[TopicSummary]
    next: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicQueue:
    """A queue of a topic: messages from offset begin to before end are kept."""

    number: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSegment:
    """A segment, and how many messages of a topic are in it. closed_at: None while it takes messages."""

    id: int
    opened_at: datetime | None
    closed_at: datetime | None
    messages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicGroup:
    """How far a group is behind in a topic, in messages."""

    group: str
    waiting: int
    retrying: int
    dead: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDetails:
    """A topic whole. halves: undecided or held back; scheduled: not due yet."""

    settings: TopicSettings
    queues: Sequence[TopicQueue]
    segments: Sequence[TopicSegment]
    """Those that are kept, the oldest first."""
    retention_s: float
    """After it is closed, a segment is kept for so long at least."""
    groups: Sequence[TopicGroup]
    halves: int
    scheduled: int

    @property
    def kept(self) -> int:
        """Messages that are in its queues."""
        return sum(queue.end - queue.begin for queue in self.queues)

    @property
    def entered(self) -> int:
        """Messages that have ever entered its queues."""
        return sum(queue.end for queue in self.queues)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicChange:
    """What is to change of a topic. What is None stays as it is; send_rate_max 0: unlimited."""

    queues: int | None = None
    write_queues: int | None = None
    read_queues: int | None = None
    ordered_queues: int | None = None
    permission: str | None = None
    durability: str | None = None
    unread: str | None = None
    message_type: str | None = None
    send_rate_max: float | None = None
    journal: bool | None = None
    erasable_s: float | None = None


class TopicAdministration:
    """What `txmsg topic` does. Calls block. Raises the errors of errors.py."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def list(self, limit: int, *, after: str = "", contains: str = "") -> TopicPage:
        """The first topics by name that come after this one, and have this in their names, whatever the case."""
        request = new_request(pb.ListTopicSettingsRequest, limit=limit, after=after, contains=contains)
        reply = self._ask(Topics.list, request)
        return TopicPage(
            topics=[
                TopicSummary(settings=_settings(topic.settings), kept=topic.kept, entered=topic.entered)
                for topic in reply.topics
            ],
            next=reply.next or None,
        )

    def show(self, topic: str) -> TopicDetails:
        """A topic. Raises UnknownTopic."""
        reply = self._ask(Topics.show, pb.ShowTopicRequest(name=topic))
        return TopicDetails(
            settings=_settings(reply.topic),
            queues=[TopicQueue(number=queue.number, begin=queue.begin, end=queue.end) for queue in reply.queues],
            segments=[
                TopicSegment(
                    id=segment.id,
                    opened_at=moment(segment.opened_at_us),
                    closed_at=moment(segment.closed_at_us),
                    messages=segment.messages,
                )
                for segment in reply.segments
            ],
            retention_s=reply.retention_s,
            groups=[
                TopicGroup(group=group.group, waiting=group.waiting, retrying=group.retrying, dead=group.dead)
                for group in reply.groups
            ],
            halves=reply.halves,
            scheduled=reply.scheduled,
        )

    def create(
        self,
        topic: str,
        queues: int | None = None,
        *,
        erasable_s: float | None = None,
        message_type: str | None = None,
    ) -> tuple[int, datetime | None, bool]:
        """Creates a topic: number of queues, when it was created, and whether it did not exist before.

        Idempotent, unless the settings differ. queues None: as many as the broker gives topics. erasable_s: keys of
        its bodies are kept for so long; None: they are not encrypted. message_type: of the messages that it takes;
        None: any, or as it is.
        """
        request = new_request(
            txmsg_pb2.CreateTopicRequest,
            name=topic,
            queues=queues or 0,
            erasable_s=erasable_s or 0,
            message_type=message_type or "",
        )
        reply = self._ask(Admin.create_topic, request)
        return reply.topic.queues, moment(reply.topic.created_at_us), reply.created

    def alter(self, topic: str, change: TopicChange) -> TopicSettings:
        """Changes settings, all or nothing; all of them after that. Raises UnknownTopic, MisuseError."""
        given = {name: value for name, value in asdict(change).items() if value is not None}
        if change.permission is not None:
            given["permission"] = PERMISSIONS[change.permission]
        return _settings(self._ask(Topics.alter, new_request(pb.AlterTopicRequest, name=topic, **given)).topic)

    def delete(self, topic: str, *, force: bool = False, dry_run: bool = False) -> None:
        """Deletes a topic with its messages. force: also what is undecided or unread. Raises UnknownTopic, MisuseError.

        dry_run: changes nothing, and raises what it would raise.
        """
        self._ask(Topics.delete, pb.DeleteTopicRequest(name=topic, force=force, dry_run=dry_run))


def _settings(settings: pb.TopicSettings) -> TopicSettings:
    return TopicSettings(
        topic=settings.name,
        queues=settings.queues,
        write_queues=settings.write_queues,
        read_queues=settings.read_queues,
        ordered_queues=settings.ordered_queues,
        permission=_NAMES_OF_PERMISSIONS[settings.permission],
        durability=settings.durability,
        unread=settings.unread,
        message_type=settings.message_type or ANY_TYPE,
        send_rate_max=settings.send_rate_max or None,
        journal_since=moment(settings.journal_since_us),
        erasable_s=settings.erasable_s or None,
        created_at=moment(settings.created_at_us),
    )
