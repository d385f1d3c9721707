"""The topics of a Notify database: their settings, and what is in them."""

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
    """A topic with its settings. A later release may know other words than `TopicChange` names here."""

    topic: str
    queues: int
    write_queues: int
    """Messages enter the first of them."""
    read_queues: int
    """Messages are delivered from the first of them."""
    ordered_queues: int
    """Ordering keys are spread over the first of them."""
    permission: str
    durability: str
    unread: str
    """What becomes of messages that are too old and not read by a group."""
    message_type: str
    """Of the messages that it takes."""
    send_rate_max: float | None = None
    """Messages per second and broker; None: unlimited."""
    journal_since: datetime | None = None
    """When its journal was switched on; None: it is off."""
    erasable_s: float | None = None
    """For how long keys of its bodies are kept; None: they are not encrypted."""
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicChange:
    """What is to change of a topic. None: it stays as it is. Command and console offer each field."""

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
    """A topic to be created; one that exists is left as it is, and refused if what is given differs.

    queues None: as many as the broker gives topics that it creates by itself. message_type None: any. erasable_s None:
    bodies are not encrypted.
    """

    topic: str
    queues: QueueCount | None = None
    message_type: MessageType | None = None
    erasable_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedTopic:
    """A topic that is there now. created: False if it was there before."""

    topic: str
    queues: int
    created_at: datetime
    created: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicQuery:
    """The first topics by name after this one whose names contain this, whatever the case."""

    limit: Annotated[int, NumberRange(1, 10_000)] = 1000
    after: str = ""
    """The `next` of the page before."""
    contains: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSummary:
    """A topic, how many messages are in its queues, and how many have ever entered them."""

    settings: TopicWithSettings
    kept: Natural
    entered: Natural


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPage:
    """Topics by name. next: what names the page after this one; None for the last one."""

    topics: Sequence[TopicSummary]
    next: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicName:
    """Which topic."""

    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicQueue:
    """A queue of a topic: messages from offset begin to before end are kept."""

    number: Natural
    begin: Natural
    end: Natural


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSegment:
    """A segment, which topics share, and how many messages of a topic are in it. closed_at None: it takes messages."""

    id: Natural
    opened_at: datetime
    closed_at: datetime | None = None
    messages: Natural


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicGroup:
    """How far a group is behind in a topic, in messages, by its cursors as written."""

    group: str
    waiting: Natural
    retrying: Natural
    dead: Natural


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDetails:
    """A topic whole. halves: undecided or held back; scheduled: not due yet."""

    settings: TopicWithSettings
    queues: Sequence[TopicQueue]
    segments: Sequence[TopicSegment]
    """Those that are kept, the oldest first. One is dropped whole, when all in it is older than the retention."""
    retention_s: float
    """After it is closed, a segment is kept for so long at least."""
    groups: Sequence[TopicGroup]
    halves: Natural
    scheduled: Natural

    @property
    def kept(self) -> int:
        """Messages that are in its queues."""
        return sum(queue.end - queue.begin for queue in self.queues)

    @property
    def entered(self) -> int:
        """Messages that have ever entered its queues."""
        return sum(queue.end for queue in self.queues)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterTopic:
    """Settings to be changed, all or nothing; refused while a change would leave messages behind."""

    topic: str
    change: TopicChange


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopic:
    """A topic to be deleted with all its messages; refused while something in it is waited for.

    force: also what is undecided, and what groups have not read. dry_run: changes nothing; refused as without it.
    """

    topic: str
    force: bool = False
    dry_run: bool = False


class TopicsService:
    """The service Topics. `settings` counts nothing, which takes `show` long in a topic of many messages."""

    create: Final = Method("Topics/Create", CreateTopic, CreatedTopic)
    list: Final = Method("Topics/List", TopicQuery, TopicPage)
    show: Final = Method("Topics/Show", TopicName, TopicDetails)
    settings: Final = Method("Topics/Settings", TopicName, TopicWithSettings)
    alter: Final = Method("Topics/Alter", AlterTopic, TopicWithSettings)
    delete: Final = Method("Topics/Delete", DeleteTopic, Nothing)
