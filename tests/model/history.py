"""A random history: transactions and the steps of clients, brokers and faults, as values made from a seed.

Knows no broker and no clock. What a step does when its turn comes is said in `play.py`. A step names others by number,
so that a history from which steps were taken away is still one (a copy of a request that was never sent is nothing).
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random

BROKERS = 2
TOPICS = 2
KEYS = 3


class Kind(enum.Enum):
    FENCED = "fenced"
    """With a local transaction: its fence decides, and clients and checks send nothing else."""
    CLAIMED = "claimed"
    """Without a fence: clients and checks send COMMIT or ROLLBACK at random, even both. The first outcome counts."""
    PLAIN = "plain"
    """A plain send."""


class RequestKind(enum.Enum):
    """The kind of a client request about a transaction."""

    HALF = "half"
    PLAIN = "plain"
    COMMIT = "commit"
    ROLLBACK = "rollback"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Transaction:
    number: int
    kind: Kind
    topics: tuple[int, ...]
    """The topic of its n-th message."""
    place: int
    """The last byte of its id, which chooses the queue."""
    commits: bool
    """True if its local transaction commits; without a fence: the answer of a check."""
    keys: tuple[int, ...] = ()
    """The ordering key of its n-th message, 0 for none; shorter: none for the others."""

    def key(self, n: int) -> int:
        """Return the ordering key of a message, 0 for none."""
        return self.keys[n] if n < len(self.keys) else 0


@dataclass(frozen=True, slots=True)
class Crowd:
    """Transactions of one client process that share requests."""

    number: int
    kind: Kind
    transactions: tuple[Transaction, ...]


# ---- steps: `number` is unique in a history


@dataclass(frozen=True, slots=True)
class Send:
    """A client sends its halves or plain messages and repeats until it has an answer."""

    number: int
    crowd: int
    broker: int


@dataclass(frozen=True, slots=True)
class Begin:
    """Local transactions begin: each writes its fence row, uncommitted."""

    number: int
    crowd: int


@dataclass(frozen=True, slots=True)
class Finish:
    """Local transactions commit or abort."""

    number: int
    crowd: int


@dataclass(frozen=True, slots=True)
class Tell:
    """The client sends the outcomes of its local transactions; `doubtful`: the reply to its own commits was lost."""

    number: int
    crowd: int
    broker: int
    doubtful: bool = False


@dataclass(frozen=True, slots=True)
class Claim:
    """A client sends an outcome of each transaction, true or not."""

    number: int
    crowd: int
    broker: int
    words: tuple[RequestKind, ...]


@dataclass(frozen=True, slots=True)
class Copy:
    """The request of step `of` arrives again, at any broker."""

    number: int
    of: int
    broker: int


@dataclass(frozen=True, slots=True)
class Leave:
    """The client that waits in step `of` dies."""

    number: int
    of: int


@dataclass(frozen=True, slots=True)
class Cut:
    """A broker's connection to the database breaks at its `skip`-th request from now: before the request arrives, or
    after it was done and before the reply arrives. `batches`: only calls of the batch function are counted."""

    number: int
    broker: int
    after: bool
    skip: int
    batches: bool


@dataclass(frozen=True, slots=True)
class Sever:
    """All connections of a broker break at once; what the server has received it may still do."""

    number: int
    broker: int


@dataclass(frozen=True, slots=True)
class Hold:
    """The next batch of a broker stays in transit until `Release`."""

    number: int
    broker: int


@dataclass(frozen=True, slots=True)
class Release:
    number: int
    broker: int


@dataclass(frozen=True, slots=True)
class Crash:
    """A broker loses its memory and its connections, and restarts."""

    number: int
    broker: int


@dataclass(frozen=True, slots=True)
class Rotate:
    """The next segment takes over."""

    number: int
    broker: int


@dataclass(frozen=True, slots=True)
class Grow:
    """A broker gives all topics more queues. The other one uses its former knowledge until `Learn`."""

    number: int
    broker: int
    queues: int


@dataclass(frozen=True, slots=True)
class Learn:
    """A broker reads whether topics have got more queues."""

    number: int
    broker: int


@dataclass(frozen=True, slots=True)
class Check:
    """A broker looks for due halves and has them checked."""

    number: int
    broker: int


@dataclass(frozen=True, slots=True)
class Read:
    """A subscriber reads on in all queues."""

    number: int


@dataclass(frozen=True, slots=True)
class Calm:
    """Everything in progress ends."""

    number: int


@dataclass(frozen=True, slots=True)
class GoBack:
    """The database returns to its state before this history, and other topics get the ids of its topics. The brokers
    run on. Nothing of the former state is left, and no client refers to it again.
    """

    number: int


ByClient = Send | Begin | Finish | Tell | Claim
Trouble = Leave | Cut | Sever | Hold | Release | Crash
ByBroker = Rotate | Grow | Learn | Check
Step = ByClient | Copy | Trouble | ByBroker | Read | Calm | GoBack


@dataclass(frozen=True, slots=True)
class History:
    seed: int
    crowds: tuple[Crowd, ...]
    steps: tuple[Step, ...]
    window: int
    """Maximum number of concurrent steps. 1: one after the other."""
    queues: int
    """Queues per topic."""

    def judged(self) -> frozenset[int]:
        """Return the transactions that can be judged at the end: those of clients that begin after the database goes
        back.
        """
        back_at = max((step.number for step in self.steps if isinstance(step, GoBack)), default=-1)
        before = {step.crowd for step in self.steps if isinstance(step, ByClient) and step.number < back_at}
        crowds = (crowd for crowd in self.crowds if crowd.number not in before)
        return frozenset(each.number for crowd in crowds for each in crowd.transactions)


def grows_topics(seed: int) -> bool:
    """Return True if topics get more queues in the history of this seed: then two copies may name different queues, and
    the locks of queues, which otherwise exclude deadlocks, do not make them wait for each other.
    """
    return seed % 2 == 1


def goes_back(seed: int) -> bool:
    """Return True if the database goes back in the history of this seed: without growing topics, at varying stages."""
    return seed % 8 in {2, 4}


def random_history(seed: int) -> History:
    """Return the history of this seed, always the same."""
    return _Maker(seed).make()


Plan = Callable[[int], Step]
"""A step that lacks only its number."""


class _Maker:
    """Interleaves the steps of all clients, a few at a time, with copies, faults and periodic work of brokers."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._random = Random(seed)
        self._steps: list[Step] = []
        self._transactions = 0
        self._ordered = self._random.choice((0.0, 0.0, 0.5, 1.0))
        """The share of messages with an ordering key."""
        self._copyable_from = 0

    def make(self) -> History:
        rng = self._random
        crowds = [self._crowd(number) for number in range(rng.randint(3, 24))]
        back_after = len(crowds) // 3 if goes_back(self._seed) else 0
        copies, trouble = rng.choice((0.0, 0.1, 0.3)), rng.choice((0.0, 0.05, 0.15))
        turning = rng.choice((0.0, 0.02, 0.06))
        later = [self._program(crowd) for crowd in crowds]
        waiting, later = later[:back_after] or later, later[back_after:] if back_after else []
        active: list[list[Plan]] = []
        crowding = rng.randint(1, 8)
        while waiting or active or later:
            if not waiting and not active:
                self._add(GoBack)
                self._copyable_from = len(self._steps)
                waiting, later = later, []
            while waiting and len(active) < crowding:
                active.append(waiting.pop(rng.randrange(len(waiting))))
            program = rng.choice(active)
            self._add(program.pop(0))
            if not program:
                active.remove(program)
            while rng.random() < copies:
                self._add_copy()
            if rng.random() < trouble:
                self._add_trouble()
            if rng.random() < 0.3:
                self._add(rng.choice((Read, Read, partial(Check, broker=self._broker()))))
            if rng.random() < turning:
                for _ in range(rng.choice((1, 1, 2))):
                    self._add(partial(Rotate, broker=self._broker()))
            if rng.random() < 0.02 and grows_topics(self._seed):
                self._add(partial(Grow, broker=self._broker(), queues=rng.randint(2, 6)))
                self._add_copy()
            if rng.random() < 0.02:
                self._add(rng.choice((Calm, partial(Learn, broker=self._broker()))))
        window, queues = rng.choice((1, 2, 4, 8, 16)), rng.choice((1, 1, 2, 4))
        return History(self._seed, tuple(crowds), tuple(self._steps), window, queues)

    def _add(self, plan: Plan) -> None:
        self._steps.append(plan(len(self._steps)))

    def _broker(self) -> int:
        return self._random.randrange(BROKERS)

    # ---- transactions and the steps of their clients

    def _crowd(self, number: int) -> Crowd:
        kind = self._random.choice((Kind.FENCED, Kind.FENCED, Kind.CLAIMED, Kind.PLAIN))
        size = self._random.choice((1, 1, 1, 2, 3, 6))
        return Crowd(number, kind, tuple(self._transaction(kind) for _ in range(size)))

    def _transaction(self, kind: Kind) -> Transaction:
        rng = self._random
        self._transactions += 1
        topics = tuple(rng.randrange(TOPICS) for _ in range(rng.choice((1, 1, 1, 2, 3))))
        keys = tuple(rng.randint(1, KEYS) if rng.random() < self._ordered else 0 for _ in topics)
        return Transaction(self._transactions, kind, topics, rng.randrange(256), rng.random() < 0.6, keys)

    def _program(self, crowd: Crowd) -> list[Plan]:
        rng, number = self._random, crowd.number
        send: Plan = partial(Send, crowd=number, broker=self._broker())
        if crowd.kind is Kind.PLAIN:
            return [send]
        if crowd.kind is Kind.CLAIMED:
            return [send, *(self._claim(crowd) for _ in range(rng.choice((0, 1, 1, 2, 3))))]
        tell: Plan = partial(Tell, crowd=number, broker=self._broker(), doubtful=rng.random() < 0.15)
        whole: list[Plan] = [send, partial(Begin, crowd=number), partial(Finish, crowd=number), tell]
        return whole if rng.random() < 0.75 else whole[: rng.randint(1, 3)]  # the client dies in between

    def _claim(self, crowd: Crowd) -> Plan:
        words = self._random.choices(
            (RequestKind.COMMIT, RequestKind.ROLLBACK, RequestKind.UNKNOWN), (5, 5, 1), k=len(crowd.transactions)
        )
        return partial(Claim, crowd=crowd.number, broker=self._broker(), words=tuple(words))

    # ---- interleaved faults

    def _add_copy(self) -> None:
        rng, last = self._random, self._steps[-1]
        since = self._steps[self._copyable_from :]
        requests = [step.number for step in since if isinstance(step, Send | Tell | Claim)]
        if not requests:
            return
        of, broker = rng.choice(requests[-3:] if rng.random() < 0.5 else requests), self._broker()
        if isinstance(last, Send) and rng.random() < 0.5:  # at the same moment at the other broker
            of, broker = last.number, BROKERS - 1 - last.broker
        elif isinstance(last, Tell | Claim) and rng.random() < 0.5:  # of the halves, while their outcome is on its way
            of = next(each.number for each in self._steps if isinstance(each, Send) and each.crowd == last.crowd)
        self._add(partial(Copy, of=of, broker=broker))

    def _add_trouble(self) -> None:
        rng, broker = self._random, self._broker()
        match rng.choice(("cut", "cut", "cut", "sever", "hold", "crash", "leave")):
            case "cut":
                batches = rng.random() < 0.7
                skip = rng.randint(1, 3 if batches else 12)
                self._add(partial(Cut, broker=broker, after=rng.random() < 0.5, skip=skip, batches=batches))
            case "sever":
                self._add(partial(Sever, broker=broker))
            case "hold":
                self._add(partial(Hold, broker=broker))
                for _ in range(rng.randint(0, 3)):
                    self._add_copy()
                if rng.random() < 0.7:
                    self._add(partial(Release, broker=broker))
            case "crash":
                self._add(partial(Crash, broker=broker))
            case "leave":
                requests = [step.number for step in self._steps[-4:] if isinstance(step, Send | Tell | Claim)]
                if requests:
                    self._add(partial(Leave, of=requests[-1]))


def described(step: Step) -> str:
    """Return a step as one line for people."""
    shown = []
    for name in step.__slots__[1:]:
        value = getattr(step, name)
        shown.append(f"{name} " + (" ".join(each.value for each in value) if name == "words" else str(value)))
    return f"{step.number:>4}  {type(step).__name__.lower():8}{', '.join(shown)}"
