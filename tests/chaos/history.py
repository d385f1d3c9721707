"""Everything sent and observed in a run, as values: from the journals of all processes and from the databases."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.chaos.journal import Entry
from tests.chaos.liveness import Standstill

STORY_TOPIC = "story"
"""Topic of messages with an ordering key."""
DURABILITY: Mapping[str, str] = {
    "trade": "sync",
    "user": "sync",
    "settlement": "replicated",
    "quote": "async",
    "presence": "memory",
    STORY_TOPIC: "sync",
}
TOPICS = tuple(topic for topic in DURABILITY if topic != STORY_TOPIC)
WATCHERS = ("watcher%0", "watcher%1")
"""Broadcasting members: each is a group of its own."""
GROUPS: Mapping[str, Mapping[str, str]] = {
    "ledger": dict.fromkeys(DURABILITY, "*"),
    "grumbler": dict.fromkeys(DURABILITY, "*"),
    "sleeper": dict.fromkeys(TOPICS, "rare"),
    **{watcher: {"user": "*", "settlement": "*"} for watcher in WATCHERS},
}
"""Subscriptions of each group: topics and their tags."""
PULLED = "puller"
"""Group of simple consumers of RocketMQ, in the first Notify database; txmsg's members are in the second."""
PUSHED = "grumbler"
"""Group that also has push consumers of RocketMQ."""
GROUPS_WITH_GUESTS: Mapping[str, Mapping[str, str]] = {**GROUPS, PULLED: {"trade": "*", STORY_TOPIC: "*"}}
"""Groups in runs with RocketMQ clients."""
HELD_BY_GUESTS_S = 10.0
"""Visibility timeout of RocketMQ clients in seconds: the minimum for simple consumers."""
HALF_TOPICS = ("trade", "settlement")
"""Topics of transactions by RocketMQ clients: each is also the name of its producer group."""
SOUGHT_TOPICS, SOUGHT_GROUPS = ("trade", "user", STORY_TOPIC), ("ledger", "grumbler")
"""Topics and groups that are sought back."""
OTHER_SHARD = 1000
"""Added to queue numbers of the second Notify database."""
VISIBILITY_TIMEOUT_S = 4.0
"""Visibility timeout of txmsg's consumers."""
RETRIES_MAX = 4
"""Retries before a message becomes a dead letter."""
EXACTLY_ONCE = "ledger"
"""The group whose effects are in the business database, beside an inbox."""


class SendMethod(enum.Enum):
    """The way in which a message was sent."""

    PLAIN = "plain"
    FENCED = "fenced"
    CLASSIC = "classic"
    """With its own check listener."""
    KEPT = "kept"
    """With a fence, and an outbox for when brokers are down."""


@dataclass(slots=True)
class Told:
    """An outcome sent to a broker, and the answer: "ok", the code of an error, or "" without an answer."""

    state: str
    begun: float
    ended: float | None = None
    reply: str = ""


class Sent(NamedTuple):
    """A message as given to the client."""

    topic: str
    tag: str = "common"
    ordering_key: str = ""
    delay_s: float = 0.0


@dataclass(slots=True)
class Sending:
    """One operation of a producer: a transaction or a plain send."""

    serial: str
    way: SendMethod
    messages: Sequence[Sent]
    begun: float
    begun_at: float = 0.0
    """Time by the sender's wall clock."""
    half_at: float | None = None
    transaction_id: str = ""
    """Known only if the producer ends the transaction itself."""
    stored_at: float | None = None
    """Time at which a plain send was acknowledged."""
    returned_at: float | None = None
    """Time at which the call returned without an error."""
    ended: float | None = None
    """Time at which the call returned or raised."""
    failed: str = ""
    """Error code that it raised."""
    told: list[Told] = field(default_factory=list)

    def ordered_at(self) -> float | None:
        """Return when its position in its ordering key was fixed: a half message or plain send was on disk."""
        match self.way:
            case SendMethod.PLAIN:
                return self.stored_at
            case SendMethod.KEPT:  # perhaps in the outbox: later calls are stored after it
                return self.returned_at
            case _:
                return self.half_at

    def acknowledged_at(self) -> float | None:
        """Return the time at which a client first knew that it is in its queue; None if no client did."""
        commits = [each.ended for each in self.told if each.state == "commit" and each.reply == "ok"]
        return self.stored_at if self.way is SendMethod.PLAIN else min(filter(None, commits), default=None)


@dataclass(slots=True)
class Handling:
    """One call of a handler. Without an end its process died, or the handler was cancelled."""

    group: str
    body: str
    place: Place
    """Position as the consumer sees it: it does not know the Notify database, so queue numbers are those there."""
    attempt: int
    process: str
    got: float
    ended: float | None = None
    done: bool = False
    got_at: float = 0.0
    """Time by the wall clock."""


Place = tuple[str, int, int]
"""Topic, queue number, offset."""


class Row(NamedTuple):
    """A row of the message table."""

    topic: str
    queue: int
    """Queue number within the topic."""
    offset: int
    segment: int
    transaction_id: str
    n: int
    body: str
    tag: str
    ordering_key: str = ""

    @property
    def place(self) -> Place:
        return self.topic, self.queue, self.offset

    @property
    def shown_place(self) -> Place:
        """Return the position as a consumer sees it."""
        return self.topic, self.queue % OTHER_SHARD, self.offset

    @property
    def serial(self) -> str:
        return serial_of(self.body)


class GroupProgress(NamedTuple):
    """The progress of a group in a queue."""

    next_offset: int
    beyond: int
    """Acknowledged offsets beyond next_offset."""


@dataclass(frozen=True, slots=True)
class DatabaseContents:
    """The contents of a Notify database at a moment."""

    rows: frozenset[tuple[str, Place]] = frozenset()
    """Body and position of each message."""
    halves: Mapping[str, str] = field(default_factory=dict)
    """Transaction id by body."""
    scheduled: frozenset[str] = frozenset()
    rolled_back: frozenset[str] = frozenset()
    """Transaction ids."""
    dead: frozenset[tuple[str, str]] = frozenset()
    """Group and body."""

    def bodies(self) -> set[str]:
        return {body for body, _ in self.rows} | self.halves.keys() | self.scheduled


@dataclass(frozen=True, slots=True)
class Loss:
    """A database that lost data: on the disk of the dead primary, and missing in its replacement."""

    cause: str
    died: float
    """Time by which the old primary was dead; clients reached the new one only later."""
    is_restored: bool
    """True if restored from a backup, which loses replicated data too."""
    gone: frozenset[str] = frozenset()
    """Bodies lost completely: no message, half message or delayed message remains."""
    changed: frozenset[str] = frozenset()
    """Serials of which some data changed."""
    undone: frozenset[str] = frozenset()
    """Ids of transactions whose rollback was lost."""
    places: frozenset[tuple[str, Place]] = frozenset()
    """Body and position of lost messages."""
    dead: frozenset[tuple[str, str]] = frozenset()
    """Group and body of the lost dead letters."""

    @classmethod
    def of(
        cls, before: DatabaseContents, after: DatabaseContents, *, cause: str, died: float, is_restored: bool
    ) -> Loss:
        places = before.rows - after.rows
        changed = {body for body, _ in places}
        changed |= {body for body in before.halves if body not in after.halves}
        changed |= before.scheduled - after.scheduled
        undone = before.rolled_back - after.rolled_back
        changed |= {body for body, transaction_id in after.halves.items() if transaction_id in undone}
        return cls(
            cause=cause,
            died=died,
            is_restored=is_restored,
            gone=frozenset(before.bodies() - after.bodies()),
            changed=frozenset(serial_of(body) for body in changed),
            undone=undone,
            places=places,
            dead=before.dead,
        )


def serial_of(body: str) -> str:
    return body.partition("/")[0]


class Seek(NamedTuple):
    """A seek of a group in one queue. Times are those of the command."""

    group: str
    place: Place
    again: bool
    begun: float
    ended: float
    is_sure: bool
    """True if the command was acknowledged."""


@dataclass(slots=True)
class Record:
    """A run. The second half is read from the databases after everything has settled."""

    groups: Mapping[str, Mapping[str, str]] = field(default_factory=lambda: GROUPS)
    sendings: dict[str, Sending] = field(default_factory=dict)
    handlings: list[Handling] = field(default_factory=list)
    last_words: dict[str, float] = field(default_factory=dict)
    """Time of each process's last journal entry."""

    crashes: list[float] = field(default_factory=list)
    """Times at which a primary of the first Notify database was certainly dead."""
    losses: list[Loss] = field(default_factory=list)
    seeks: list[Seek] = field(default_factory=list)
    redriven: set[tuple[str, str]] = field(default_factory=set)
    """Group and body of redriven dead letters, which can be delivered again."""
    clock: list[tuple[float, float]] = field(default_factory=list)
    """Clock error of the database from each time on."""
    stands: Sequence[Standstill] = ()
    """Items that waited unchanged for longer than allowed."""
    chain: Sequence[str] = ()
    """Violations of the chain: see chain_verdict.py."""

    rows: list[Row] = field(default_factory=list)
    """Ordered by topic, queue and offset."""
    chain_rows: list[Row] = field(default_factory=list)
    """Rows of topics of the chain."""
    committed: set[str] = field(default_factory=set)
    """Serials whose local transaction committed."""
    effects: Counter[str] = field(default_factory=Counter)
    """Number of effects of EXACTLY_ONCE's handler by body."""
    rolled_back: set[str] = field(default_factory=set)
    """Transaction ids."""
    undecided: dict[str, str] = field(default_factory=dict)
    """Bodies of half messages, with the reason if they are parked."""
    scheduled: set[str] = field(default_factory=set)
    """Bodies of delayed messages not due yet."""
    cursors: dict[tuple[str, str, int], GroupProgress] = field(default_factory=dict)
    """Progress by group, topic and queue."""
    retrying: set[tuple[str, str, int, int]] = field(default_factory=set)
    """Group and position."""
    dead: set[tuple[str, str, int, int]] = field(default_factory=set)


class Recorder:
    """Adds journal entries to a record."""

    def __init__(self) -> None:
        self.record = Record()
        self.acknowledged: list[float] = []
        """Times at which a sender got an acknowledgement."""
        self.delivered: list[float] = []
        self.redelivered = 0
        self.checked: Counter[str] = Counter()
        """Answers of RocketMQ's clients about transactions, by process."""
        self.steps: Counter[str] = Counter()
        """Attempts of the services of the chain, and answers to check-backs; of both also the repeated ones."""
        self._steps_seen: set[tuple[str, str]] = set()
        self.quiet: set[str] = set()
        """Processes that start no new operations."""
        self._running: dict[tuple[str, int], Handling] = {}

    def add(self, process: str, entry: Entry) -> None:
        at, wall, word, *values = entry
        self.record.last_words[process] = at
        match word:
            case "begin":
                serial, way, messages = values
                sending = Sending(serial, SendMethod(way), [Sent(*each) for each in messages], at, wall)
                self.record.sendings[serial] = sending
            case "half":
                sending = self._sending(values[0])
                sending.half_at, sending.transaction_id = at, values[1]
                self.acknowledged.append(at)
            case "stored":
                self._sending(values[0]).stored_at = at
                self.acknowledged.append(at)
            case "returned":
                sending = self._sending(values[0])
                sending.returned_at = sending.ended = at
                self.acknowledged.append(at)
            case "failed":
                sending = self._sending(values[0])
                sending.failed, sending.ended = values[1], at
            case "tell":
                self._sending(values[0]).told.append(Told(values[1], at))
            case "told":
                told = self._sending(values[0]).told[-1]
                told.ended, told.reply = at, values[2]
            case "got":
                call, group, body, topic, queue, offset, attempt = values
                handling = Handling(group, body, (topic, queue, offset), attempt, process, at, got_at=wall)
                self.record.handlings.append(handling)
                self._running[process, call] = handling
                self.delivered.append(at)
                self.redelivered += attempt > 1
            case "done" | "refused":
                handling = self._running.pop((process, values[0]))
                handling.ended, handling.done = at, word == "done"
            case "chain":
                self._count_step(*values)
            case "checked":
                self.checked[process] += 1
            case "quiet":
                self.quiet.add(process)

    def _count_step(self, name: str, of: str) -> None:
        self.steps[name] += 1
        self.steps[f"{name}_again"] += (name, of) in self._steps_seen
        self._steps_seen.add((name, of))

    def _sending(self, serial: str) -> Sending:
        return self.record.sendings[serial]
