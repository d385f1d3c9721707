"""Consumer groups: where they stand, their settings, where they go on; their retries; when half messages are checked.

A field that a group of a log does not have, or that is not known, is None.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Final, Literal

from txmsg.administration.ask import Nothing
from txmsg.administration.dead_letters import AttemptFailure
from txmsg.settings.clients import CONCURRENCY_MAX
from txmsg.wire.method import Method
from txmsg.wire.start import Start
from txmsg.wire.values import Natural32, NumberRange

PoisonedKey = Literal["continue", "park"]
"""After a dead letter, whether its ordering key continues, or waits for an operator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLag:
    """How far a group is behind in a topic, in messages."""

    topic: str
    waiting: int
    retrying: int | None = None
    dead: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSummary:
    """A consumer group, and how far it is behind, in messages that are not acknowledged. topics: by name."""

    group: str
    members: int | None = None
    waiting: int
    retrying: int
    dead: int
    topics: Sequence[TopicLag]
    created_at: datetime | None = None
    stopped: bool | None = None
    """Of a log: whether an operator has stopped it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckSettings:
    """When the half messages of a producer group are checked, by the broker that answers.

    own: which of these are not the broker's.
    """

    group: str
    first_check_s: float
    check_interval_s: float
    checks_max: int
    no_client_park_s: float
    own: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupQuery:
    """Which groups: the first by name that come after this one, and have this in their names, whatever the case."""

    limit: Annotated[int, NumberRange(1, 10_000)] = 1000
    after: str = ""
    contains: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupList:
    """Groups by name. next: `after` of the page after this one; None for the last one."""

    groups: Sequence[GroupSummary]
    producer_groups: Sequence[CheckSettings]
    next: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupName:
    """Which group."""

    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """How a consumer group retries, and how fast it is served. None: as the broker says, or the consumer itself."""

    retry_delays_s: Sequence[float] | None = None
    """Before each retry; the last one repeats."""
    retries_max: int | None = None
    poisoned_key: PoisonedKey | None = None
    deliver_rate_max: float | None = None
    """Messages per second and broker, of a log per member; None: no limit."""
    concurrency: int | None = None
    """Of a log: handlers of each subscription that run at once in each member, at most. None: as they say."""
    stopped: bool = False
    """An operator has stopped delivery to it."""
    orderly: bool = False
    """RocketMQ's push consumers retry on the spot, in the order of ordering keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveGroupMember:
    """A member that is alive. silent_s: since it asked for messages. since: attached to the broker that was asked."""

    id: str
    silent_s: float | None = None
    topics: Sequence[str] | None = None
    strategy: str | None = None
    host: str | None = None
    pid: int | None = None
    release: str | None = None
    since: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupQueue:
    """Where a group stands in a queue: everything below next_offset is done, begin to end is kept.

    owner: the member that reads it. seeking: it was told to go on at next_offset, and has not begun.
    """

    topic: str
    queue: int
    owner: str | None = None
    next_offset: int | None = None
    begin: int
    end: int
    waiting: int
    retrying: int | None = None
    dead: int | None = None
    seeking: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDetails:
    """A consumer group whole. paused_s: for how long everything has failed, so that it gets single messages.

    Members and pause are those that the broker that answers knows.
    """

    settings: GroupSettings
    created_at: datetime | None = None
    paused_s: float | None = None
    last_error: str | None = None
    waiting: int
    retrying: int
    dead: int
    members: Sequence[LiveGroupMember]
    queues: Sequence[GroupQueue]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupChange:
    """What is to change of a consumer group's settings. What is None stays as it is."""

    group: str
    retry_delays_s: Sequence[float] | None = None
    default_retries: bool = False
    """Delays and number of retries are the broker's again, where none are given."""
    retries_max: Annotated[int, NumberRange(0, 10_000)] | None = None
    poisoned_key: PoisonedKey | None = None
    deliver_rate_max: float | None = None
    """0: no limit."""
    concurrency: Annotated[int, NumberRange(0, CONCURRENCY_MAX)] | None = None
    """Of a log. 0: as the subscriptions say."""
    stopped: bool | None = None
    """Whether nothing is delivered to it."""
    orderly: bool | None = None
    create: bool = False
    """Where there is no such group yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckChange:
    """What is to change of a producer group's checks. What is None stays, or with default_checks is the broker's."""

    group: str
    default_checks: bool = False
    first_check_s: float | None = None
    check_interval_s: float | None = None
    checks_max: Annotated[int, NumberRange(0, 1_000_000)] | None = None
    no_client_park_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Seek:
    """Where a group goes on in a topic, or in one queue of it, while its consumers run. All or nothing.

    again: messages come under a new generation, so that handlers under @idempotent run again. dry_run: changes nothing.
    """

    group: str
    topic: str
    to: Start
    queue: Natural32 | None = None
    again: bool = False
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SeekPlan:
    """Where each queue goes on. queues: as they are after the seek; of a dry run, as they are."""

    queues: Sequence[GroupQueue]
    to: Sequence[int]

    @property
    def skipped(self) -> int:
        """Messages that would not be delivered: at most so many, as some of them may be acknowledged already."""
        return sum(max(0, to - _next_offset(queue)) for queue, to in zip(self.queues, self.to, strict=True))

    @property
    def repeated(self) -> int:
        """Messages that would be delivered although the group is done with them."""
        return sum(max(0, _next_offset(queue) - to) for queue, to in zip(self.queues, self.to, strict=True))


def _next_offset(queue: GroupQueue) -> int:
    return max(queue.next_offset or 0, queue.begin)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDeletion:
    """Which group is deleted, with its cursors. dry_run: only refuses what would be refused."""

    group: str
    force: bool = False
    """Though it has retries and dead letters, or in Notify members."""
    dry_run: bool = False


# ---- retries


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingRetry:
    """A message that a group could not process yet. due_at None: when an earlier one of its ordering key is done.

    id: UUID.NUMBER. attempts: that failed. failures: the oldest first. generation: how often it was redelivered on
    request.
    """

    id: str
    topic: str
    queue: int
    offset: int
    key: str | None = None
    tag: str | None = None
    ordering_key: str | None = None
    stored_at: datetime
    attempts: int
    due_at: datetime | None = None
    last_error: str | None = None
    failures: Sequence[AttemptFailure]
    generation: int
    body_size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryQuery:
    """Which retries. after: `next` of the page before."""

    group: str
    limit: Annotated[int, NumberRange(1, 10_000)] = 100
    after: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPage:
    """Retries, those that are due first. next: what names the page after this one; None for the last one."""

    retries: Sequence[PendingRetry]
    next: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryNow:
    """Which retries are made due: of a message (UUID.NUMBER), of a transaction (UUID), or a batch of all ("").

    Those that wait for an earlier message of their ordering key go on waiting. after: `next` of the batch before.
    """

    group: str
    id: str = ""
    after: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetriesDue:
    """How many retries were made due. next: what names the batch after this one; None for the last one."""

    retries: int
    next: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrySkip:
    """Which retries are deleted for good: of a message (UUID.NUMBER), or of a transaction (UUID)."""

    group: str
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RetriesSkipped:
    """How many retries were deleted."""

    skipped: int


class GroupsService:
    """The service Groups."""

    list: Final = Method("Groups/List", GroupQuery, GroupList)
    show: Final = Method("Groups/Show", GroupName, GroupDetails)
    show_settings: Final = Method("Groups/ShowSettings", GroupName, GroupSettings)
    alter: Final = Method("Groups/Alter", GroupChange, GroupSettings)
    seek: Final = Method("Groups/Seek", Seek, SeekPlan)
    list_retries: Final = Method("Groups/ListRetries", RetryQuery, RetryPage)
    retry_now: Final = Method("Groups/RetryNow", RetryNow, RetriesDue)
    skip_retry: Final = Method("Groups/SkipRetry", RetrySkip, RetriesSkipped)
    delete: Final = Method("Groups/Delete", GroupDeletion, Nothing)
    show_checks: Final = Method("Groups/ShowChecks", GroupName, CheckSettings)
    alter_checks: Final = Method("Groups/AlterChecks", CheckChange, CheckSettings)
