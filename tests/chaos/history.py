"""Everything that was said and seen in a run, as values: from the journals of all processes, and from the databases."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.chaos.journal import Entry

TOPICS = ("trade", "user")
STORY_TOPIC = "story"
"""Of messages with an ordering key."""
GROUPS: Mapping[str, Mapping[str, str]] = {
    "ledger": {topic: "*" for topic in (*TOPICS, STORY_TOPIC)},
    "grumbler": {topic: "*" for topic in (*TOPICS, STORY_TOPIC)},
    "sleeper": {topic: "rare" for topic in TOPICS},
}
"""What each group subscribes to: topics, and which tags of them."""
INVISIBLE_S = 4.0
"""What consumers ask for."""
EXACTLY_ONCE = "ledger"
"""The group whose effects are in the business database, beside an inbox."""


class Way(enum.Enum):
    """How a message was sent."""

    PLAIN = "plain"
    FENCED = "fenced"
    CLASSIC = "classic"
    """With a check listener of its own."""


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
    stored_at: float | None = None
    """Plain: acknowledged."""
    returned_at: float | None = None
    """The call came back without an error."""
    failed: str = ""
    """The code of the error that it raised instead."""
    told: list[Told] = field(default_factory=list)

    def ordered_at(self) -> float | None:
        """When its place among the messages of its ordering key was certain: a half, or a plain send, was on disk."""
        return self.stored_at if self.way is Way.PLAIN else self.half_at

    def acknowledged_at(self) -> float | None:
        """When somebody knew that it is in its queue; None: nobody did."""
        commits = [each.ended for each in self.told if each.state == "commit" and each.reply == "ok"]
        return self.stored_at if self.way is Way.PLAIN else min(filter(None, commits), default=None)


@dataclass(slots=True)
class Handling:
    """One call of a handler. Without an end its process died, or the handler was cancelled."""

    group: str
    body: str
    place: tuple[str, int, int]
    """Topic, number of the queue, offset."""
    attempt: int
    process: str
    got: float
    ended: float | None = None
    done: bool = False
    got_at: float = 0.0
    """By the wall clock."""


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
    def place(self) -> tuple[str, int, int]:
        return self.topic, self.queue, self.offset

    @property
    def serial(self) -> str:
        return self.body.partition("/")[0]


class Passed(NamedTuple):
    """How far a group is in a queue."""

    next_offset: int
    beyond: int
    """Acknowledged behind next_offset."""


@dataclass(slots=True)
class Record:
    """A run. The second half is read from the databases when nothing moves any more."""

    sendings: dict[str, Sending] = field(default_factory=dict)
    handlings: list[Handling] = field(default_factory=list)
    last_words: dict[str, float] = field(default_factory=dict)
    """When each process wrote its last entry."""

    rows: list[Row] = field(default_factory=list)
    """By topic, queue and offset."""
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
                self._sending(values[0]).half_at = at
                self.acknowledged.append(at)
            case "stored":
                self._sending(values[0]).stored_at = at
                self.acknowledged.append(at)
            case "returned":
                self._sending(values[0]).returned_at = at
                self.acknowledged.append(at)
            case "failed":
                self._sending(values[0]).failed = values[1]
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

            case "quiet":
                self.quiet.add(process)

    def _sending(self, serial: str) -> Sending:
        return self.record.sendings[serial]
