"""The interface of a log, `LogAccess`: the same for a directory, the address of a server, and Kafka.

`txmsg.metaq.location.open_log` returns a `LogAccess`. Calls block, so asyncio runs them on a thread. Every call is
coarse (many queues at once), its arguments and results are plain values, and there are no callbacks: each can be one
request to a server.

The guarantees:

read    Returns what is flushed as its topic promises, nothing half written, with matching checksums. A problem with
        one queue (not kept any more, a hole, damage, a message that cannot be read) is reported beside the other
        queues' batches, and does not affect them. What stands before it is returned first.
append  All batches or none; on disk on return as each topic's flush promises. A path needs `append=True`: a log has
        one writer. Topics %RETRY%GROUP and %DLQ%GROUP are small logs of the group: any member may append to them.
groups  A queue has at most one owner at any time, among all members, local and remote. The offset stored for a queue
        is protected by its ownership: a new owner gets what the last owner stored. A member that dies releases all
        its queues: on a path at once (the kernel drops its locks), at a server when its session expires. Each member
        computes the assignment in the same way from the same view (`txmsg.metaq.group.assignment`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Final, NamedTuple, Protocol, Self, runtime_checkable

from txmsg.errors import MisuseError, OffsetOutOfRange, OffsetsMissing, TxmsgError, UnreadableMessage, shown
from txmsg.message import ReceivedMessage
from txmsg.metaq.acks import Acks
from txmsg.metaq.format.batch import LogBatch
from txmsg.metaq.format.frame import FrameColumns
from txmsg.metaq.store.delayed import DELAYED, Delayed
from txmsg.metaq.store.log import Append
from txmsg.metaq.store.state import LogIdentity
from txmsg.metaq.store.topics import TopicSettings
from txmsg.settings.clients import CONCURRENCY_MAX
from txmsg.wire.start import Start

FETCH_SIZE_BYTES_MAX: Final = 1024 * 1024
"""Bytes that a fetch returns at most, unless the caller gives another size (or one batch alone is larger)."""
SESSION_S: Final = 10.0
"""Seconds of silence after which a member at a server, or in Kafka, loses its queues, unless its client asks for
others.
"""
RETRIES: Final = "%RETRY%"
"""%RETRY%GROUP: messages that failed, in a queue per back-off step."""
DEAD_LETTERS: Final = "%DLQ%"
"""%DLQ%GROUP: messages whose retries are used up."""
NOTES: Final = "%APPENDS%"
"""The topic in which a server records the appends that it has carried out."""
OWN: Final = frozenset({NOTES, DELAYED})
"""Topics of the log itself."""


class LogQueue(NamedTuple):
    """A queue of a topic."""

    topic: str
    queue: int


class QueueRange(NamedTuple):
    """The offset of the first message that is kept, and the one after the last."""

    begin: int
    end: int


class ColumnsFor(NamedTuple):
    """Messages to append to a queue. due_at_us: as in `Append`."""

    topic: str
    queue: int
    columns: FrameColumns
    due_at_us: int | None = None


@dataclass(frozen=True, slots=True)
class Fetched:
    """The result of a fetch for one queue: consecutive batches, or the error why there are none."""

    queue: LogQueue
    batches: tuple[LogBatch, ...] = ()
    error: TxmsgError | None = None
    """OffsetOutOfRange (before the begin or past the end), OffsetsMissing (a hole), UnreadableMessage, CorruptLog."""

    @property
    def size_bytes(self) -> int:
        """The size of the batches."""
        return sum(batch.size_bytes for batch in self.batches)

    def readable(self) -> Fetched:
        """Return the same up to the first message that cannot be read; if that is the first one, its UnreadableMessage.

        For readers of single messages: in Arrow, headers of frames are bytes that are not parsed.
        """
        for at, batch in enumerate(self.batches):
            if (error := batch.unreadable()) is not None:
                assert error.next_offset is not None
                before = batch.before(error.next_offset - 1)
                batches = (*self.batches[:at], *((before,) if len(before) else ()))
                return Fetched(self.queue, batches, None if batches else error)
        return self


def offset_after(error: TxmsgError, offset: int) -> int | None:
    """Return the offset at which reading continues if what cannot be read at this offset is skipped.

    None: nowhere. There is nothing behind it, or the error is of another kind, such as damage.
    """
    if isinstance(error, OffsetsMissing):
        return error.end
    if isinstance(error, OffsetOutOfRange):
        return error.begin if offset < error.begin else None
    return error.next_offset if isinstance(error, UnreadableMessage) else None


class Member(NamedTuple):
    """A member of a group.

    id: unique; members are sorted by it. strategy: the name of its assignment strategy. zone: where it runs.
    """

    id: str
    topics: tuple[str, ...]
    strategy: str
    zone: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogGroupSettings:
    """Settings of a group of a log that operators set, and all its members follow."""

    stopped: bool = False
    """True if no message is passed to handlers, or to callers that poll. Running handlers finish."""
    concurrency: int | None = None
    """Handlers of each subscription that run at once in each member, at most. None: as the subscription says."""
    rate_per_s: float | None = None
    """Messages that the handlers of each member begin with per second. None: no limit of the group."""

    def __post_init__(self) -> None:
        if not isinstance(self.stopped, bool):
            raise MisuseError(f"stopped={shown(self.stopped)} of a group: give True or False")
        if self.concurrency is not None and not (
            type(self.concurrency) is int and 1 <= self.concurrency <= CONCURRENCY_MAX
        ):
            raise MisuseError(
                f"concurrency={shown(self.concurrency)} of a group: give 1 to {CONCURRENCY_MAX}, or 0 for that of its "
                "subscriptions"
            )
        if self.rate_per_s is not None and not (
            isinstance(self.rate_per_s, int | float)
            and not isinstance(self.rate_per_s, bool)
            and isfinite(self.rate_per_s)
            and self.rate_per_s > 0
        ):
            raise MisuseError(
                f"rate_per_s={shown(self.rate_per_s)} of a group: give messages per second, or 0 for no limit"
            )

    def altered(
        self, *, stopped: bool | None = None, concurrency: int | None = None, rate_per_s: float | None = None
    ) -> LogGroupSettings:
        """Return the settings after a change. None leaves a value as it is; 0 resets it. Raises MisuseError."""
        return LogGroupSettings(
            stopped=self.stopped if stopped is None else stopped,
            concurrency=self.concurrency if concurrency is None else concurrency or None,
            rate_per_s=self.rate_per_s if rate_per_s is None else rate_per_s or None,
        )


@dataclass(frozen=True, slots=True)
class GroupView:
    """The input of the assignment. The same for all members once membership is stable."""

    members: tuple[Member, ...]
    """The members that are alive, sorted by id."""
    queues: tuple[LogQueue, ...]
    """All queues of all topics that a member reads, as far as they are open (`TopicSettings.gives`); sorted. Members
    with handlers read %RETRY%GROUP, too."""
    sought: Mapping[LogQueue, int]
    """Queues of this member for which a seek is pending, with its offset: see `GroupMember.seek_done`."""
    zone: str = ""
    """The zone of the log: its queues are assigned to members of this zone, if there are any."""
    settings: LogGroupSettings = LogGroupSettings()
    """The settings that operators have set for the group."""


@dataclass(frozen=True, slots=True)
class QueueState:
    """A queue of a group. owner: the id of a member. offset: the next one to be handled, once stored."""

    queue: LogQueue
    owner: str | None
    offset: int | None
    kept: QueueRange


@dataclass(frozen=True, slots=True)
class GroupState:
    """The state of a group, for display."""

    group: str
    members: tuple[Member, ...]
    queues: tuple[QueueState, ...]
    settings: LogGroupSettings = LogGroupSettings()


class LogAccess(Protocol):
    """A log of any kind. Threads may share it."""

    def close(self) -> None:
        """End waits of other threads and leave all groups. Closing twice is fine."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    # ---- reading

    def identity(self) -> LogIdentity:
        """Return the log's identity and generation: under another generation, earlier offsets may refer to other
        messages.
        """
        ...

    def topics(self) -> dict[str, list[int]]:
        """Return the existing topics with the numbers of their queues, without those of groups and internal ones."""
        ...

    def queues_of(self, topic: str) -> list[int]:
        """Return the numbers of the queues of a topic, also of a group's; empty if there is no such topic."""
        ...

    def ranges(self, queues: Collection[LogQueue]) -> dict[LogQueue, QueueRange]:
        """Return the range kept of each queue. (0, 0) for a queue that was never written to."""
        ...

    def offsets_at(self, queues: Collection[LogQueue], at_us: int) -> dict[LogQueue, int]:
        """Return for each queue the first offset of a batch with a message stored at this time or later; otherwise its
        end.
        """
        ...

    def fetch(
        self,
        wanted: Mapping[LogQueue, int],
        *,
        size_bytes_max: int = FETCH_SIZE_BYTES_MAX,
        wait_s: float = 0.0,
    ) -> list[Fetched]:
        """Return batches of each queue from this offset on, queues in the given order, until size_bytes_max is reached.

        Returns at least one batch if there is any; queues without new messages are omitted. If no queue has any, it
        waits up to wait_s for the first. Callers rotate the order, so that no queue starves.
        """
        ...

    def find(self, topic: str, key: str, *, count_max: int = 100) -> list[ReceivedMessage]:
        """Return kept messages with this key, by queue and offset."""
        ...

    def find_id(self, topic: str, message_id: str) -> ReceivedMessage | None:
        """Return the message with this id, if it is kept. Reads the topic from shortly before the id was created.

        Raises InvalidMessage if it is not a valid message id.
        """
        ...

    def delayed(self, limit: int = 100) -> Delayed:
        """Return delayed messages that are waiting: their number per topic, and those due first.

        Reads all of them. Raises MisuseError for a log in Kafka, which has no delayed messages.
        """
        ...

    # ---- appending

    def append(self, appends: Sequence[Append], acks: Acks | None = None) -> list[int]:
        """Append all batches or none, and return their first offsets. For errors see `Log.append`.

        acks: the level to wait for; None: that of topics and the server. With Acks.NONE a server returns offsets of -1.
        """
        ...

    def recall(self, topic: str, number: int) -> None:
        """Cancel delayed messages: those that one send appended for one queue and time. Repeating it changes nothing.

        number: `Place.number`, or that of `delayed`. Raises MisuseError if they are not waiting: they were delivered,
        or never existed.
        """
        ...

    def settings_of(self, topic: str) -> TopicSettings:
        """Return the settings of this topic, such as the compression that encoders use."""
        ...

    def set_topic(self, topic: str, settings: TopicSettings) -> None:
        """Set the settings of this topic, from the next append on; stored in the log."""
        ...

    def flush(self) -> None:
        """Return when everything appended before is on disk, regardless of its topics' settings."""
        ...

    # ---- groups

    def join(
        self,
        group: str,
        topics: Collection[str],
        *,
        start: Start = Start.earliest(),
        strategy: str = "averaged",
        zone: str = "",
    ) -> GroupMember:
        """Create a member that reads these topics, which need not exist yet. It owns no queues yet.

        start: where the group begins in topics that are new to it; not an offset. Queues added to a topic later begin
        at their first message.
        """
        ...

    def groups(self) -> list[str]:
        """Return all groups, with and without members."""
        ...

    def group(self, group: str) -> GroupState:
        """Return the state of a group. Raises UnknownGroup."""
        ...

    def seek(self, group: str, offsets: Mapping[LogQueue, int]) -> None:
        """Move a group to these offsets, whether members run or not. Raises UnknownGroup.

        An owned queue moves when its owner next calls `GroupMember.view`, within about a second.
        """
        ...

    def alter_group(
        self,
        group: str,
        *,
        stopped: bool | None = None,
        concurrency: int | None = None,
        rate_per_s: float | None = None,
    ) -> LogGroupSettings:
        """Change the settings of a group, on disk on return; all of them after that. Members follow within a second.

        None leaves a value as it is; 0 resets concurrency or rate_per_s. Raises UnknownGroup, and MisuseError, also for
        a log in Kafka, which stores no settings.
        """
        ...

    def delete_group(self, group: str) -> None:
        """Delete a group with its offsets, retries and dead letters.

        Raises UnknownGroup, and MisuseError while it has members.
        """
        ...


@runtime_checkable
class TakesColumns(Protocol):
    """A log that does not store frames: `LogProducer` passes it columns instead of encoded batches."""

    def append_columns(self, batches: Sequence[ColumnsFor], acks: Acks | None = None) -> list[int]:
        """Append as `LogAccess.append` does, and return the first offset of each."""
        ...


class GroupMember(Protocol):
    """A member of a group, for the process that it runs in. One thread at a time uses it.

    Every call renews the session at a server, so call `view` about every second. After a silence longer than the
    session every call raises MembershipLost: other members own the queues by now; stop the current work and join again.
    """

    @property
    def id(self) -> str:
        """Its id, unique among all members."""
        ...

    @property
    def group(self) -> str:
        """The group's name."""
        ...

    def view(self) -> GroupView:
        """Return the members, the queues, pending seeks, and the group's settings."""
        ...

    def take_queues(self, queues: Collection[LogQueue]) -> dict[LogQueue, int]:
        """Take those of these queues that are free; return for each one taken the offset at which to continue.

        Queues that another member still owns are omitted: try again at the next view.
        """
        ...

    def store(self, offsets: Mapping[LogQueue, int]) -> None:
        """Store the offsets at which to continue, of queues that it owns. A crash leaves the old or the new one.

        After a power cut it may be an earlier one. Raises MisuseError for a queue that it does not own.
        """
        ...

    def seek_done(self, offsets: Mapping[LogQueue, int]) -> None:
        """Store the offsets of completed seeks, and remove these seeks. Until then nothing overwrites them."""
        ...

    def release(self, offsets: Mapping[LogQueue, int]) -> None:
        """Store these offsets and release the queues. None of their handlers may be running."""
        ...

    def leave(self, offsets: Mapping[LogQueue, int]) -> None:
        """Store these offsets, release all queues, and leave the group. Leaving twice is fine."""
        ...


def offsets_of(log: LogAccess, queues: Collection[LogQueue], start: Start) -> dict[LogQueue, int]:
    """Return the offset of each queue at which reading from `start` begins."""
    match start.kind:
        case "time":
            return log.offsets_at(queues, start.value)
        case "offset":
            return dict.fromkeys(queues, start.value)
        case "earliest":
            return {queue: kept.begin for queue, kept in log.ranges(queues).items()}
        case "latest":
            return {queue: kept.end for queue, kept in log.ranges(queues).items()}
