"""Everything that was said and seen in a run, as values: from the journals of all processes, and from the databases."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.chaos.journal import Entry
from tests.chaos.liveness import Standstill

STORY_TOPIC = "story"
"""Of messages with an ordering key."""
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
"""Members that broadcast: each is a group of its own."""
GROUPS: Mapping[str, Mapping[str, str]] = {
    "ledger": dict.fromkeys(DURABILITY, "*"),
    "grumbler": dict.fromkeys(DURABILITY, "*"),
    "sleeper": dict.fromkeys(TOPICS, "rare"),
    **{watcher: {"user": "*", "settlement": "*"} for watcher in WATCHERS},
}
"""What each group subscribes to: topics, and which tags of them."""
PULLED = "puller"
"""Of simple consumers of RocketMQ, which reach the first Notify database only: txmsg's are for the second one."""
PUSHED = "grumbler"
"""Whose members are push consumers of RocketMQ, too."""
GROUPS_WITH_GUESTS: Mapping[str, Mapping[str, str]] = {**GROUPS, PULLED: {"trade": "*", STORY_TOPIC: "*"}}
"""With clients of RocketMQ."""
HELD_BY_GUESTS_S = 10.0
"""How long a message is a RocketMQ client's; the least that simple consumers may ask for."""
HALF_TOPICS = ("trade", "settlement")
"""Of transactions by clients of RocketMQ: each is the producer group of its own."""
SOUGHT_TOPICS, SOUGHT_GROUPS = ("trade", "user", STORY_TOPIC), ("ledger", "grumbler")
"""Where groups are sent back."""
OTHER_SHARD = 1000
"""Added to the numbers of queues in the second Notify database."""
VISIBILITY_TIMEOUT_S = 4.0
"""What consumers ask for."""
RETRIES_MAX = 4
"""A message that fails once more is a dead letter."""
EXACTLY_ONCE = "ledger"
"""The group whose effects are in the business database, beside an inbox."""


class Way(enum.Enum):
    """How a message was sent."""

    PLAIN = "plain"
    FENCED = "fenced"
    CLASSIC = "classic"
    """With a check listener of its own."""
    KEPT = "kept"
    """With a fence, and an outbox for when no broker answers."""


@dataclass(slots=True)
class Told:
    """An outcome told to a broker, and the answer: "ok", the code of an error, or "" when none came."""

    state: str
    begun: float
    ended: float | None = None
    reply: str = ""


class Sent(NamedTuple):
    """A message as it was given to the client."""

    topic: str
    tag: str = "common"
    ordering_key: str = ""
    delay_s: float = 0.0


@dataclass(slots=True)
class Sending:
    """One thing that a producer did: a transaction, or a plain send."""

    serial: str
    way: Way
    messages: Sequence[Sent]
    begun: float
    begun_at: float = 0.0
    """By the sender's wall clock."""
    half_at: float | None = None
    transaction_id: str = ""
    """Where the producer ends the transaction itself, and so knows it."""
    stored_at: float | None = None
    """Plain: acknowledged."""
    returned_at: float | None = None
    """The call came back without an error."""
    ended: float | None = None
    """The call came back, whether well or not."""
    failed: str = ""
    """The code of the error that it raised instead."""
    told: list[Told] = field(default_factory=list)

    def ordered_at(self) -> float | None:
        """When its place among the messages of its ordering key was certain: a half, or a plain send, was on disk."""
        match self.way:
            case Way.PLAIN:
                return self.stored_at
            case Way.KEPT:  # perhaps in the outbox: what is called after it comes behind it
                return self.returned_at
            case _:
                return self.half_at

    def acknowledged_at(self) -> float | None:
        """When somebody knew that it is in its queue; None: nobody did."""
        commits = [each.ended for each in self.told if each.state == "commit" and each.reply == "ok"]
        return self.stored_at if self.way is Way.PLAIN else min(filter(None, commits), default=None)


@dataclass(slots=True)
class Handling:
    """One call of a handler. Without an end its process died, or the handler was cancelled."""

    group: str
    body: str
    place: Place
    """Which of the Notify databases it came from, a consumer is not told: numbers of queues are as they are there."""
    attempt: int
    process: str
    got: float
    ended: float | None = None
    done: bool = False
    got_at: float = 0.0
    """By the wall clock."""


Place = tuple[str, int, int]
"""Topic, number of the queue, offset."""


class Row(NamedTuple):
    """A row of the message table."""

    topic: str
    queue: int
    """Its number in the topic."""
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
        """As a consumer is told it."""
        return self.topic, self.queue % OTHER_SHARD, self.offset

    @property
    def serial(self) -> str:
        return serial_of(self.body)


class Passed(NamedTuple):
    """How far a group is in a queue."""

    next_offset: int
    beyond: int
    """Acknowledged behind next_offset."""


@dataclass(frozen=True, slots=True)
class Stand:
    """What a Notify database holds at a moment."""

    rows: frozenset[tuple[str, Place]] = frozenset()
    """Body and place of each message."""
    halves: Mapping[str, str] = field(default_factory=dict)
    """By body, the transaction id."""
    scheduled: frozenset[str] = frozenset()
    rolled_back: frozenset[str] = frozenset()
    """Transaction ids."""
    dead: frozenset[tuple[str, str]] = frozenset()
    """Group and body."""

    def bodies(self) -> set[str]:
        return {body for body, _ in self.rows} | self.halves.keys() | self.scheduled


@dataclass(frozen=True, slots=True)
class Loss:
    """A database that went back: what the dead primary held on its disk, and the one in its place does not."""

    cause: str
    died: float
    """The dead one was dead at this moment, and nobody was let in to the other before it."""
    is_restored: bool
    """From a backup: what is replicated is gone, too."""
    gone: frozenset[str] = frozenset()
    """Bodies of which nothing is left: no message, no half, nothing that waits until it is due."""
    changed: frozenset[str] = frozenset()
    """Serials of which something is not as it was."""
    undone: frozenset[str] = frozenset()
    """Ids of transactions that are not rolled back any more."""
    places: frozenset[tuple[str, Place]] = frozenset()
    """Body and place of messages that are not there any more."""
    dead: frozenset[tuple[str, str]] = frozenset()
    """Group and body of the dead letters there were."""

    @classmethod
    def of(cls, before: Stand, after: Stand, *, cause: str, died: float, is_restored: bool) -> Loss:
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
    """A group was sent back in one queue. Moments are those of the command."""

    group: str
    place: Place
    again: bool
    begun: float
    ended: float
    is_sure: bool
    """Somebody answered that it is done."""


@dataclass(slots=True)
class Record:
    """A run. The second half is read from the databases when nothing moves any more."""

    groups: Mapping[str, Mapping[str, str]] = field(default_factory=lambda: GROUPS)
    sendings: dict[str, Sending] = field(default_factory=dict)
    handlings: list[Handling] = field(default_factory=list)
    last_words: dict[str, float] = field(default_factory=dict)
    """When each process wrote its last entry."""

    crashes: list[float] = field(default_factory=list)
    """When a primary of the first Notify database was certainly dead."""
    losses: list[Loss] = field(default_factory=list)
    seeks: list[Seek] = field(default_factory=list)
    redriven: set[tuple[str, str]] = field(default_factory=set)
    """Group and body of dead letters that may have been delivered again on request."""
    clock: list[tuple[float, float]] = field(default_factory=list)
    """From each moment on, by how much the clock of the database was wrong."""
    stands: Sequence[Standstill] = ()
    """What waited without any change for longer than is allowed."""
    chain: Sequence[str] = ()
    """What is wrong with the chain: see chain_verdict.py."""

    rows: list[Row] = field(default_factory=list)
    """By topic, queue and offset."""
    chain_rows: list[Row] = field(default_factory=list)
    """Of topics of the chain."""
    committed: set[str] = field(default_factory=set)
    """Serials whose local transaction committed."""
    effects: Counter[str] = field(default_factory=Counter)
    """How often the handler of EXACTLY_ONCE took effect, by body."""
    rolled_back: set[str] = field(default_factory=set)
    """Transaction ids."""
    undecided: dict[str, str] = field(default_factory=dict)
    """Bodies of half messages, and why they are parked, if they are."""
    scheduled: set[str] = field(default_factory=set)
    """Bodies of messages that wait until they are due."""
    cursors: dict[tuple[str, str, int], Passed] = field(default_factory=dict)
    """By group, topic, queue."""
    retrying: set[tuple[str, str, int, int]] = field(default_factory=set)
    """Group and place."""
    dead: set[tuple[str, str, int, int]] = field(default_factory=set)


class Recorder:
    """Puts entries of journals into a record."""

    def __init__(self) -> None:
        self.record = Record()
        self.acknowledged: list[float] = []
        """Moments at which a sender was told that something is stored."""
        self.delivered: list[float] = []
        self.redelivered = 0
        self.checked: Counter[str] = Counter()
        """Answers of RocketMQ's clients about transactions, by process."""
        self.steps: Counter[str] = Counter()
        """Attempts of the services of the chain, and answers to checks; of them those that were not the first ones."""
        self._steps_seen: set[tuple[str, str]] = set()
        self.quiet: set[str] = set()
        """Processes that begin nothing new."""
        self._running: dict[tuple[str, int], Handling] = {}

    def add(self, process: str, entry: Entry) -> None:
        at, wall, word, *values = entry
        self.record.last_words[process] = at
        match word:
            case "begin":
                serial, way, messages = values
                sending = Sending(serial, Way(way), [Sent(*each) for each in messages], at, wall)
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
