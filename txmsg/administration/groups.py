"""Consumer groups: progress, settings, seeks and retries; checks of producer groups.

A field that does not apply to a group of a log, or is unknown, is None.
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
"""After a dead letter, its ordering key continues, or waits for an operator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLag:
    """The lag of a group in a topic, in messages."""

    topic: str
    waiting: int
    retrying: int | None = None
    dead: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSummary:
    """A consumer group, and its lag in messages that are not acknowledged. topics: by name."""

    group: str
    members: int | None = None
    waiting: int
    retrying: int
    dead: int
    topics: Sequence[TopicLag]
    created_at: datetime | None = None
    stopped: bool | None = None
    """True if an operator has stopped it; for a log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckSettings:
    """Times and limits of a producer group's checks, at the broker that answers.

    own: names of the settings that differ from the broker's.
    """

    group: str
    first_check_s: float
    check_interval_s: float
    checks_max: int
    no_client_park_s: float
    own: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupQuery:
    """A query of groups by name: the first ones after `after` whose names contain `contains`, case-insensitive."""

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
    """A group, by its name."""

    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """The retries and rates of a consumer group. None: the default of the broker, or of the consumer."""

    retry_delays_s: Sequence[float] | None = None
    """The delay before each retry; the last one repeats."""
    retries_max: int | None = None
    poisoned_key: PoisonedKey | None = None
    deliver_rate_max: float | None = None
    """Messages per second and broker, for a log per member; None: no limit."""
    concurrency: int | None = None
    """The most handlers of each subscription at once in a member; for a log. None: the subscription's own."""
    stopped: bool = False
    """True if an operator has stopped delivery to it."""
    orderly: bool = False
    """True if RocketMQ's push consumers retry in place, in the order of ordering keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveGroupMember:
    """A live member. silent_s: since its last request. since: the time it attached to the broker that was asked."""

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
    """The progress of a group in a queue: everything below next_offset is done, begin to end is kept.

    owner: the member that reads it. seeking: a seek to next_offset has not taken effect yet.
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
    """All details of a consumer group. paused_s: seconds since all handlers fail, so that it gets single messages.

    Members and pause are those known to the broker that answers.
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
    """A change of a consumer group's settings. None: unchanged."""

    group: str
    retry_delays_s: Sequence[float] | None = None
    default_retries: bool = False
    """Reset delays and number of retries to the broker's, unless given."""
    retries_max: Annotated[int, NumberRange(0, 10_000)] | None = None
    poisoned_key: PoisonedKey | None = None
    deliver_rate_max: float | None = None
    """0: no limit."""
    concurrency: Annotated[int, NumberRange(0, CONCURRENCY_MAX)] | None = None
    """The concurrency in a log. 0: the subscriptions' own."""
    stopped: bool | None = None
    """True: stop delivery to it."""
    orderly: bool | None = None
    create: bool = False
    """True: create the group if it does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckChange:
    """A change of a producer group's checks. None: unchanged, or with default_checks the broker's."""

    group: str
    default_checks: bool = False
    first_check_s: float | None = None
    check_interval_s: float | None = None
    checks_max: Annotated[int, NumberRange(0, 1_000_000)] | None = None
    no_client_park_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Seek:
    """A seek of a group in a topic, or in one queue of it, while its consumers run. All queues, or none.

    again: messages get a new generation, so that handlers under @idempotent run again. dry_run: changes nothing.
    """

    group: str
    topic: str
    to: Start
    queue: Natural32 | None = None
    again: bool = False
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SeekPlan:
    """The next offset of each queue. queues: after the seek; for a dry run, now."""

    queues: Sequence[GroupQueue]
    to: Sequence[int]

    @property
    def skipped(self) -> int:
        """Messages that would not be delivered. An upper bound: some may be acknowledged already."""
        return sum(max(0, to - _next_offset(queue)) for queue, to in zip(self.queues, self.to, strict=True))

    @property
    def repeated(self) -> int:
        """Messages that would be delivered again."""
        return sum(max(0, _next_offset(queue) - to) for queue, to in zip(self.queues, self.to, strict=True))


def _next_offset(queue: GroupQueue) -> int:
    return max(queue.next_offset or 0, queue.begin)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDeletion:
    """A deletion of a group with its cursors. dry_run: deletes nothing, and is refused like the deletion."""

    group: str
    force: bool = False
    """True: delete it even with retries and dead letters, or in Notify with members."""
    dry_run: bool = False


# ---- retries


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingRetry:
    """A message to be retried. due_at None: after an earlier message of its ordering key is done.

    id: UUID.NUMBER. attempts: failed ones. failures: the oldest first. generation: the number of redeliveries on
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
    """A query of retries. after: `next` of the page before."""

    group: str
    limit: Annotated[int, NumberRange(1, 10_000)] = 100
    after: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPage:
    """Retries, the earliest due first. next: `after` of the next page; None for the last one."""

    retries: Sequence[PendingRetry]
    next: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryNow:
    """A request to make retries due: of a message (UUID.NUMBER), of a transaction (UUID), or a batch of all ("").

    Retries that wait for an earlier message of their ordering key still wait. after: `next` of the batch before.
    """

    group: str
    id: str = ""
    after: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetriesDue:
    """The number of retries made due. next: `after` of the next batch; None for the last one."""

    retries: int
    next: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrySkip:
    """A request to delete retries for good: of a message (UUID.NUMBER), or of a transaction (UUID)."""

    group: str
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RetriesSkipped:
    """The number of deleted retries."""

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
