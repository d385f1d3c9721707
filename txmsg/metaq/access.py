"""How a log is used: by one object, the same for a directory and for the address of a server.

`txmsg.metaq.location.open_log` gives a `LogAccess`. Calls block, so asyncio calls them on a thread. Every call is
coarse (many queues at once), its arguments and results are plain values, and there are no callbacks: each can be one
request to a server.

What each promises:

read    Sees what is flushed as its topic promises, nothing half written. What is served matches its checksum. Trouble
        with one queue (not kept any more, a hole, damage) is told beside the others' batches, and harms none of them.
append  All batches or none; on disk on return as each topic's flush promises. A path needs `append=True`: a log has
        one writer. Topics %RETRY%GROUP and %DLQ%GROUP are small logs of the group's own: any member may append to them.
groups  A queue has one owner at most, at any time, among all members, local and remote. The offset stored for a queue
        is kept with the right to own it: who takes a queue gets what the last owner stored. A member that dies gives
        back all its queues: on a path at once (the kernel drops its locks), at a server when its session expires.
        Which member owns what is decided by each member in the same way, from the same view
        (`txmsg.metaq.group.assignment`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, Self, runtime_checkable

from txmsg.errors import TxmsgError
from txmsg.message import ReceivedMessage
from txmsg.metaq.acks import Acks
from txmsg.metaq.format.batch import LogBatch
from txmsg.metaq.format.frame import Columns
from txmsg.metaq.store.delayed import DELAYED, Delayed
from txmsg.metaq.store.log import Append
from txmsg.metaq.store.state import Identity
from txmsg.metaq.store.topics import TopicSettings
from txmsg.runtime.start import Start

FETCH_SIZE_BYTES_MAX: Final = 1024 * 1024
"""What a fetch returns at most, unless it is told otherwise (or one batch alone is larger)."""
RETRIES: Final = "%RETRY%"
"""%RETRY%GROUP: messages that failed, in a queue per back-off step."""
DEAD_LETTERS: Final = "%DLQ%"
"""%DLQ%GROUP: messages whose retries are used up."""
NOTES: Final = "%APPENDS%"
"""Where a server notes which appends it has carried out."""
OWN: Final = frozenset({NOTES, DELAYED})
"""Topics of the log itself."""


class LogQueue(NamedTuple):
    """A queue of a topic."""

    topic: str
    queue: int


class Range(NamedTuple):
    """The offset of the first message that is kept, and the one after the last."""

    begin: int
    end: int


class ColumnsFor(NamedTuple):
    """Messages to be appended to a queue. due_at_us: as in `Append`."""

    topic: str
    queue: int
    columns: Columns
    due_at_us: int | None = None


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a fetch found in one queue: batches that follow each other, or why there are none."""

    queue: LogQueue
    batches: tuple[LogBatch, ...] = ()
    error: TxmsgError | None = None
    """OffsetOutOfRange (before the begin or past the end), OffsetsMissing (a hole: go on at its `end`), CorruptLog."""

    @property
    def size_bytes(self) -> int:
        """Of the batches."""
        return sum(batch.size_bytes for batch in self.batches)


class Member(NamedTuple):
    """A member of a group. id: its own; ids sort members. strategy: the name of what it assigns queues by. zone: where
    it runs."""

    id: str
    topics: tuple[str, ...]
    strategy: str
    zone: str = ""


@dataclass(frozen=True, slots=True)
class GroupView:
    """What members decide by. The same for all of them, as soon as things are quiet."""

    members: tuple[Member, ...]
    """Those alive, sorted by id."""
    queues: tuple[LogQueue, ...]
    """All queues of all topics that a member reads, as far as they are open (`TopicSettings.gives`); sorted. Members
    with handlers read %RETRY%GROUP, too."""
    sought: Mapping[LogQueue, int]
    """Queues of this member for which a seek is pending, with its offset: see `GroupMember.seek_done`."""
    zone: str = ""
    """Where the log is: its queues are assigned to members of this zone, if there are any."""


@dataclass(frozen=True, slots=True)
class QueueState:
    """A queue as a group has it. owner: the id of a member. offset: the next one to be handled, once stored."""

    queue: LogQueue
    owner: str | None
    offset: int | None
    kept: Range


@dataclass(frozen=True, slots=True)
class GroupState:
    """A group, to be shown."""

    group: str
    members: tuple[Member, ...]
    queues: tuple[QueueState, ...]


class LogAccess(Protocol):
    """A log, wherever it is. Threads may share it."""

    def close(self) -> None:
        """Ends waits of other threads and leaves all groups. Closing twice is fine."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    # ---- reading

    def identity(self) -> Identity:
        """Which log it is, and its generation: another one means that offsets of before may name other messages."""
        ...

    def topics(self) -> dict[str, list[int]]:
        """The topics there are now, without those of groups and a server's own, and the numbers of their queues."""
        ...

    def queues_of(self, topic: str) -> list[int]:
        """The numbers of the queues of a topic, which may be a group's; none when there is no such topic."""
        ...

    def ranges(self, queues: Collection[LogQueue]) -> dict[LogQueue, Range]:
        """What is kept of each queue. (0, 0) for one to which nothing was ever written."""
        ...

    def offsets_at(self, queues: Collection[LogQueue], at_us: int) -> dict[LogQueue, int]:
        """Of each queue the first offset of a batch with a message stored at this time or later; else its end."""
        ...

    def fetch(
        self,
        wanted: Mapping[LogQueue, int],
        *,
        size_bytes_max: int = FETCH_SIZE_BYTES_MAX,
        wait_s: float = 0.0,
    ) -> list[Fetched]:
        """Batches of each queue from this offset on, queues in the order given until size_bytes_max is reached.

        At least one batch if there is any; queues with nothing new are left out. If all are, it waits up to wait_s for
        the first to have something. Callers rotate the order, so that no queue starves.
        """
        ...

    def find(self, topic: str, key: str, *, count_max: int = 100) -> list[ReceivedMessage]:
        """Messages with this key that are kept, by queue and offset."""
        ...

    def find_id(self, topic: str, message_id: str) -> ReceivedMessage | None:
        """The message with this id, if it is kept. Reads the topic from shortly before the id was made on.

        Raises InvalidMessage for what is not the id of a message.
        """
        ...

    def delayed(self, limit: int = 100) -> Delayed:
        """What waits until it is due: how many messages of each topic, and those that are due first.

        Reads all that waits. Raises MisuseError for a log in Kafka, which has no delayed messages.
        """
        ...

    # ---- appending

    def append(self, appends: Sequence[Append], acks: Acks | None = None) -> list[int]:
        """Appends all batches or none; their first offsets. As `Log.append`, which see for errors.

        acks: what is waited for; None: what topics and the server ask for. With Acks.NONE a server gives offsets of -1.
        """
        ...

    def recall(self, topic: str, number: int) -> None:
        """Has delayed messages not be delivered: what one send gave for one queue and time. Again: nothing changes.

        number: `Place.number`, or that of `delayed`. Raises MisuseError for what does not wait: it was delivered, or
        there was none.
        """
        ...

    def settings_of(self, topic: str) -> TopicSettings:
        """What this topic asks for. Who encodes batches compresses them as it says."""
        ...

    def set_topic(self, topic: str, settings: TopicSettings) -> None:
        """Chooses what this topic asks for, from the next append on; kept in the log."""
        ...

    def flush(self) -> None:
        """Everything that was appended before is on disk, whatever its topics promise."""
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
        """Makes a new member that reads these topics, which need not be there yet. It owns nothing yet.

        start: where the group begins in topics that are new to it; no offset. Queues that a topic gets later begin at
        their first message.
        """
        ...

    def groups(self) -> list[str]:
        """The groups there are, with and without members."""
        ...

    def group(self, group: str) -> GroupState:
        """How far a group is. Raises UnknownGroup."""
        ...

    def seek(self, group: str, offsets: Mapping[LogQueue, int]) -> None:
        """Has a group go on at these offsets, while members run or not. Raises UnknownGroup.

        A queue that is owned moves when its owner looks next (`GroupMember.view`), within about a second.
        """
        ...

    def delete_group(self, group: str) -> None:
        """Forgets a group, its offsets, retries and dead letters.

        Raises UnknownGroup, and MisuseError while it has members.
        """
        ...


@runtime_checkable
class TakesColumns(Protocol):
    """A log that keeps messages otherwise than in frames: `LogProducer` encodes nothing for it."""

    def append_columns(self, batches: Sequence[ColumnsFor], acks: Acks | None = None) -> list[int]:
        """As `LogAccess.append`: the first offset of each."""
        ...


class GroupMember(Protocol):
    """A member of a group, as it is seen from within. One thread at a time uses it.

    Every call renews the session at a server, so `view` is called every second or so. After a silence longer than the
    session every call raises MembershipLost: the queues are others' by now; stop what is under way and join again.
    """

    @property
    def id(self) -> str:
        """Its own, among all members."""
        ...

    @property
    def group(self) -> str:
        """The group's name."""
        ...

    def view(self) -> GroupView:
        """Who is there, which queues there are, and what is sought."""
        ...

    def take(self, queues: Collection[LogQueue]) -> dict[LogQueue, int]:
        """Takes what is free of these queues; for each that it got, the offset to go on at.

        One that another member still owns is left out: try again at the next view.
        """
        ...

    def store(self, offsets: Mapping[LogQueue, int]) -> None:
        """Stores the offset to go on at, of queues that it owns. A crash leaves the old one or the new one.

        After a power cut it may be an earlier one. Raises MisuseError for a queue that it does not own.
        """
        ...

    def seek_done(self, offsets: Mapping[LogQueue, int]) -> None:
        """Stores offsets that were sought, and forgets that they were. Until then nothing replaces the wish."""
        ...

    def release(self, offsets: Mapping[LogQueue, int]) -> None:
        """Stores these offsets and releases the queues. No handler of theirs runs any more."""
        ...

    def leave(self, offsets: Mapping[LogQueue, int]) -> None:
        """Stores these offsets, gives back all queues, and leaves the group. Leaving twice is fine."""
        ...


def offsets_of(log: LogAccess, queues: Collection[LogQueue], start: Start) -> dict[LogQueue, int]:
    """The offset of each queue at which reading from `start` begins."""
    match start.kind:
        case "time":
            return log.offsets_at(queues, start.value)
        case "offset":
            return dict.fromkeys(queues, start.value)
        case "earliest":
            return {queue: kept.begin for queue, kept in log.ranges(queues).items()}
        case "latest":
            return {queue: kept.end for queue, kept in log.ranges(queues).items()}
