"""Administration of consumer groups and dead letters: one interface, with Notify and the log as two back ends.

notify   by the services Groups and DeadLetters of a broker
log      of a log, in a directory or at the address of its server

Beside it, for a Notify database by a broker, the same for all commands and pages:

topics, schemas, halves   topics; their schemas; half messages
messages, life   single messages, found and erased; the life of one
cluster  brokers, and what they export
settings, alerts, audit   settings at run time; alerts; the audit log
access, rules   users and tokens; rules of access

ask, fields   asking a broker; the fields of a change
log_contents   the state of a log, its topics and their queues

A field that a back end does not have, or does not know, is None. What it cannot do is refused with MisuseError.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from txmsg.administration.ask import moment
from txmsg.runtime.start import Start
from txmsg.wire.v1 import dead_letters_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLag:
    """How far a group is behind in a topic, in messages."""

    topic: str
    waiting: int
    retrying: int | None
    dead: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSummary:
    """A consumer group, and how far it is behind, in messages."""

    group: str
    members: int | None
    waiting: int
    retrying: int
    dead: int
    topics: Sequence[TopicLag]
    created_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckSettings:
    """When the half messages of a producer group are checked. own: which of these are not the broker's."""

    group: str
    first_check_s: float
    check_interval_s: float
    checks_max: int
    no_client_park_s: float
    own: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupList:
    """Groups by name. next: what names the page after this one; None for the last one."""

    groups: Sequence[GroupSummary]
    producer_groups: Sequence[CheckSettings]
    next: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """How a consumer group retries, and how fast it is served. None: as the broker says, or the consumer itself.

    stopped: an operator has stopped delivery to it. orderly: RocketMQ's push consumers retry on the spot.
    """

    retry_delays_s: Sequence[float] | None = None
    retries: int | None = None
    poisoned_key: str | None = None
    rate: float | None = None
    stopped: bool = False
    orderly: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
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
    owner: str | None
    next_offset: int | None
    begin: int
    end: int
    waiting: int
    retrying: int | None
    dead: int | None
    seeking: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDetails:
    """A consumer group whole. paused_s: for how long everything has failed, so that it gets single messages."""

    settings: GroupSettings
    created_at: datetime | None
    paused_s: float | None
    last_error: str | None
    waiting: int
    retrying: int
    dead: int
    members: Sequence[GroupMember]
    queues: Sequence[GroupQueue]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupChange:
    """What is to change of a consumer group's settings. What is None stays as it is."""

    retry_delays_s: Sequence[float] | None = None
    default_retries: bool = False
    """Delays and number of retries are the broker's again."""
    retries_max: int | None = None
    poisoned_key: str | None = None
    deliver_rate_max: float | None = None
    """0: no limit."""
    stopped: bool | None = None
    """Whether nothing is delivered to it."""
    orderly: bool | None = None
    create: bool = False
    """Where there is no such group yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckChange:
    """What is to change of a producer group's checks. What is None stays, or with default_checks is the broker's."""

    default_checks: bool = False
    first_check_s: float | None = None
    check_interval_s: float | None = None
    checks_max: int | None = None
    no_client_park_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SeekPlan:
    """What a seek would do: queues as they are, and where each would go on."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why one attempt failed. is_expired: it was not settled within its visibility timeout, rather than refused."""

    attempt: int
    at: datetime | None
    error: str
    is_expired: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """A message that a group could not process yet. due_at None: when an earlier one of its ordering key is done."""

    id: str
    topic: str
    queue: int
    offset: int
    key: str | None
    tag: str | None
    ordering_key: str | None
    stored_at: datetime | None
    attempts: int
    due_at: datetime | None
    last_error: str | None
    failures: Sequence[Failure]
    generation: int
    body_size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPage:
    """Retries, those that are due first. next: what names the page after this one; None for the last one."""

    retries: Sequence[Retry]
    next: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterFilter:
    """Which dead letters: all that is said must hold. "" and None say nothing."""

    group: str = ""
    topic: str = ""
    since: datetime | None = None
    """Died then or later."""
    until: datetime | None = None
    """Died before then."""
    error: str = ""
    """In the last error, whatever the case of its letters."""
    id: str = ""
    """Of a message (UUID.NUMBER), or of a transaction (UUID)."""
    key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A message whose retries are used up. headers, body and failures may be empty unless they were asked for."""

    id: str
    group: str
    topic: str
    queue: int | None
    offset: int | None
    key: str | None
    tag: str | None
    ordering_key: str | None
    blocks_key: bool
    """Later messages of its ordering key wait for it."""
    born_at: datetime | None
    stored_at: datetime | None
    died_at: datetime | None
    attempts: int
    generation: int
    """How often it was redelivered on request."""
    last_error: str | None
    body_size_bytes: int
    headers: Mapping[str, str]
    body: bytes
    is_withheld: bool
    """Headers and body were asked for, and left out: the caller may not read the topic."""
    failures: Sequence[Failure]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterPage:
    """Dead letters, the longest dead first. next: what names the page after this one; None for the last one."""

    letters: Sequence[DeadLetter]
    next: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Dead letters that are to be redriven or purged. Those that die meanwhile are none of them, in Notify."""

    which: DeadLetterFilter
    count: int


class Administration(Protocol):
    """What `txmsg group` and `txmsg dead-letter` do. Calls block. Raises the errors of errors.py."""

    # ---- groups

    def list_groups(self, limit: int, *, after: str = "", contains: str = "") -> GroupList:
        """The first groups by name that come after this one, and have this in their names, whatever the case."""
        ...

    def show_group(self, group: str) -> GroupDetails:
        """A consumer group. Raises UnknownGroup."""
        ...

    def show_checks(self, group: str) -> CheckSettings | None:
        """When the half messages of a producer group are checked; None for a group that does not produce."""
        ...

    def alter_group(self, group: str, change: GroupChange) -> GroupSettings:
        """Changes settings of a consumer group; all of them after that. Raises UnknownGroup, unless it creates it."""
        ...

    def alter_checks(self, group: str, change: CheckChange) -> CheckSettings:
        """Changes settings of a producer group; all of them after that. Raises UnknownGroup."""
        ...

    def seek(
        self, group: str, topic: str, to: Start, *, queue: int | None = None, again: bool = False
    ) -> Sequence[GroupQueue]:
        """Has a group go on elsewhere in a topic, or one queue of it, while its consumers run; those queues.

        again: messages come under a new generation, so that handlers under @idempotent run again.
        Raises UnknownGroup, UnknownTopic.
        """
        ...

    def plan_seek(self, group: str, topic: str, to: Start, *, queue: int | None = None) -> SeekPlan:
        """What `seek` would do. Changes nothing. Raises what `seek` raises."""
        ...

    def list_retries(self, group: str, *, limit: int, page: str = "") -> RetryPage:
        """The first page of a group's retries, or the one that `page` names. Raises UnknownGroup."""
        ...

    def retry_now(self, group: str, id: str = "") -> Iterator[int]:
        """Makes retries due at once, those of a message, of a transaction, or all; after each step how many they were.

        Those that wait for an earlier message of their ordering key go on waiting. Raises UnknownGroup.
        """
        ...

    def skip_retry(self, group: str, id: str) -> int:
        """Deletes the retry of a message, or those of a transaction, for good; how many they were. Raises UnknownGroup.

        A handler that has one of them at this moment goes on.
        """
        ...

    def delete_group(self, group: str, *, force: bool = False, dry_run: bool = False) -> None:
        """Deletes a group. force: also one that has retries and dead letters. Raises UnknownGroup, MisuseError.

        dry_run: changes nothing, and raises what it would raise.
        """
        ...

    # ---- dead letters

    def list_dead_letters(
        self, which: DeadLetterFilter, *, limit: int, page: str = "", whole: bool = False
    ) -> DeadLetterPage:
        """The first page of dead letters, or the one that `page` names. whole: with headers, bodies and failures."""
        ...

    def select(self, which: DeadLetterFilter) -> Selection:
        """How many dead letters these are now."""
        ...

    def redrive(self, selection: Selection, *, rate: float | None = None) -> Iterator[int]:
        """Delivers dead letters again as if they were new to their group; after each step how many they were.

        Given up in between, or failed: the rest are dead letters still. rate: per second at most.
        """
        ...

    def purge(self, selection: Selection) -> Iterator[int]:
        """Deletes dead letters for good; after each step how many they were."""
        ...


def _next_offset(queue: GroupQueue) -> int:
    return max(queue.next_offset or 0, queue.begin)


def failures_of(failures: Iterable[dead_letters_pb2.Failure]) -> list[Failure]:
    """Why attempts failed, as a broker tells it."""
    return [
        Failure(attempt=each.attempt, at=moment(each.at_us), error=each.error, is_expired=each.expired)
        for each in failures
    ]
