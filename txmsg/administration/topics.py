"""The topics of a Notify database: their settings and contents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Final, Literal

from txmsg.administration.ask import Nothing
from txmsg.administration.fields import setting
from txmsg.message import QUEUES_MAX
from txmsg.wire.method import Method
from txmsg.wire.values import Natural, NumberRange

Permission = Literal["rw", "r", "w", "none"]
Durability = Literal["replicated", "sync", "async", "memory"]
Unread = Literal["keep", "drop"]
MessageType = Literal["any", "normal", "fifo", "delay", "transaction"]
QueueCount = Annotated[int, NumberRange(1, QUEUES_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicWithSettings:
    """A topic with its settings. A later release may use other values than those of `TopicChange`."""

    topic: str
    queues: int
    write_queues: int
    """Messages enter this many of its first queues."""
    read_queues: int
    """Messages are delivered from this many of its first queues."""
    ordered_queues: int
    """Ordering keys are spread over this many of its first queues."""
    permission: str
    durability: str
    unread: str
    """Keep or drop messages that are too old and that a group has not read."""
    message_type: str
    """The type of messages that it accepts."""
    send_rate_max: float | None = None
    """Messages per second and broker; None: unlimited."""
    journal_since: datetime | None = None
    """The time at which its journal was switched on; None: it is off."""
    erasable_s: float | None = None
    """Seconds for which keys of its bodies are kept; None: they are not encrypted."""
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicChange:
    """A change of a topic's settings. None: unchanged. Command and console offer each field."""

    queues: QueueCount | None = setting("Total number of queues; can only grow.")
    write_queues: QueueCount | None = setting("Number of queues that accept messages.")
    read_queues: QueueCount | None = setting("Number of queues that are delivered; the others must be drained.")
    ordered_queues: QueueCount | None = setting(
        "Number of queues that ordering keys are spread over; all must be drained."
    )
    permission: Permission | None = setting("Whether messages may be sent (w) and delivered (r).")
    durability: Durability | None = setting("How safely messages are stored before a send returns.")
    unread: Unread | None = setting("Keep or drop messages that a group has not read after --retention-max.")
    send_rate_max: float | None = setting(
        "Messages per second that each broker accepts; 0: unlimited.", option="send-rate"
    )
    journal: bool | None = setting("Record each delivery, acknowledgement and check for `txmsg message trace`.")
    message_type: MessageType | None = setting(
        "Accept only messages with an ordering key (fifo), delayed ones (delay), those of transactions "
        "(transaction), or others (normal).",
        option="type",
    )
    erasable_s: float | None = setting(
        "Encrypt each body with its own key, for `txmsg message erase`, and keep keys for this time, such as 400d. "
        "An erasable topic stays erasable.",
        option="erasable",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopic:
    """A topic to create; an existing one is left unchanged, and the request refused if given values differ.

    queues None: the broker's number for topics that it creates by itself. message_type None: any. erasable_s None:
    bodies are not encrypted.
    """

    topic: str
    queues: QueueCount | None = None
    message_type: MessageType | None = None
    erasable_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedTopic:
    """The topic that exists now. created: False if it existed before."""

    topic: str
    queues: int
    created_at: datetime
    created: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicQuery:
    """A query of topics by name: the first ones after `after` whose names contain `contains`, case-insensitive."""

    limit: Annotated[int, NumberRange(1, 10_000)] = 1000
    after: str = ""
    """The `next` of the page before."""
    contains: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSummary:
    """A topic, the number of messages in its queues, and the number that have ever entered them."""

    settings: TopicWithSettings
    kept: Natural
    entered: Natural


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPage:
    """Topics by name. next: `after` of the next page; None for the last one."""

    topics: Sequence[TopicSummary]
    next: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicName:
    """A topic, by its name."""

    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicQueue:
    """A queue of a topic: messages from offset begin to before end are kept."""

    number: Natural
    begin: Natural
    end: Natural


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSegment:
    """A segment, shared by topics, and the number of a topic's messages in it. closed_at None: it accepts messages."""

    id: Natural
    opened_at: datetime
    closed_at: datetime | None = None
    messages: Natural


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicGroup:
    """The lag of a group in a topic, in messages, by its written cursors."""

    group: str
    waiting: Natural
    retrying: Natural
    dead: Natural


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDetails:
    """All details of a topic. halves: undecided or held back; scheduled: not due yet."""

    settings: TopicWithSettings
    queues: Sequence[TopicQueue]
    segments: Sequence[TopicSegment]
    """The kept segments, the oldest first. A segment is dropped whole, once all its messages exceed the retention."""
    retention_s: float
    """Seconds for which a closed segment is kept at least."""
    groups: Sequence[TopicGroup]
    halves: Natural
    scheduled: Natural

    @property
    def kept(self) -> int:
        """The number of messages in its queues."""
        return sum(queue.end - queue.begin for queue in self.queues)

    @property
    def entered(self) -> int:
        """The number of messages that have ever entered its queues."""
        return sum(queue.end for queue in self.queues)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterTopic:
    """A change of settings, all or none; refused while it would leave messages undelivered."""

    topic: str
    change: TopicChange


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopic:
    """A topic to delete with all its messages; refused while messages in it are undecided or unread.

    force: delete those, too. dry_run: deletes nothing, and is refused like the deletion.
    """

    topic: str
    force: bool = False
    dry_run: bool = False


class TopicsService:
    """The service Topics. Unlike `show`, `settings` counts no messages, which takes long in a large topic."""

    create: Final = Method("Topics/Create", CreateTopic, CreatedTopic)
    list: Final = Method("Topics/List", TopicQuery, TopicPage)
    show: Final = Method("Topics/Show", TopicName, TopicDetails)
    settings: Final = Method("Topics/Settings", TopicName, TopicWithSettings)
    alter: Final = Method("Topics/Alter", AlterTopic, TopicWithSettings)
    delete: Final = Method("Topics/Delete", DeleteTopic, Nothing)
