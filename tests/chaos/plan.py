"""The schedule of faults, drawn from a seed, and the required number of each. Pure."""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from tests.chaos.chain_verdict import STEPS

MINUTE_S = 60.0
BROKERS, PRODUCERS, CONSUMERS = 3, 3, 2
SERVICE_KILLS = 4
"""Kills of each service per minute: a service is rarely in the middle of its work."""
GATEWAYS = 2
"""Number of gateways. Each serves a producer and a consumer of RocketMQ, if the run has any."""
OF_OTHER_SHARD = BROKERS
"""Number of the only broker of the second Notify database."""
LATE_S_MAX = 20.0
"""A fault counts for its minute even if it had to wait for the one before, which is slow on a busy machine."""
PAUSE_S = (6.0, 8.0)
"""Longer than a broker's lease of 5 s."""
GUEST_PAUSE_S = (1.0, 12.0)
"""Sometimes longer than a client's visibility timeout and a producer's timeout."""
SYNC_DELAYS_S = (0.003, 0.02, 0.1, 0.3)
"""A disk in a cloud has 3 ms."""
LOSS_DELAYS_S = (0.1, 0.3)
"""Before a loss of power: long enough for the kill to come while something is not synced."""
CLOCK_STEP_S = (2.0, 15.0)
CLOCK_LEAP_S = 3600.0
"""The database clock is stepped by CLOCK_STEP_S or by this, forward or back, and then corrected."""


class Kind(enum.Enum):
    """A fault and its kind of target."""

    KILL = "broker killed"
    PAUSE = "broker paused"
    CUT_DATABASE = "broker cut off from the database"
    CUT_CLIENTS = "broker cut off from clients"
    STOP = "broker stopped in order"
    DRAIN = "broker drained"
    TWIN = "second broker with the same id"
    POSTGRES = "PostgreSQL killed"
    PROMOTE = "standby promoted"
    RESTORE = "backup restored"
    SLOW_DISK = "disk of the database slow"
    POWER_LOSS = "database lost its power, and what it had not synced"
    CLOCK = "clock of the database stepped"
    CLOCK_KILL = "clock of the database set back while all brokers are dead"
    SEEK = "group sent back"
    REDRIVE = "dead letters redriven"
    BUSINESS = "clients cut off from their database"
    PRODUCER = "producer killed"
    CONSUMER = "consumer killed"
    SERVICE = "service of the chain killed"
    GATEWAY = "gateway killed"
    GATEWAY_STOP = "gateway stopped in order"
    GATEWAY_PAUSE = "gateway paused"
    GATEWAY_CUT = "gateway cut off from clients"
    GUEST_PRODUCER = "producer of RocketMQ killed"
    GUEST_PRODUCER_PAUSE = "producer of RocketMQ paused"
    GUEST_CONSUMER = "consumer of RocketMQ killed"
    GUEST_CONSUMER_PAUSE = "consumer of RocketMQ paused"


class Moment(enum.Enum):
    """The phase of its work in which a broker is paused."""

    ANY = "at any moment"
    BATCH = "in the middle of a batch"
    ASSIGNMENT = "in the middle of an assignment"


class Standby(enum.Enum):
    """The state of the standby when the primary dies."""

    CLOSE = "close behind"
    BEHIND = "cut off for a while"
    UNNAMED = "cut off, and waited for no longer"


class Cut(enum.Enum):
    """A way in which a network fails."""

    RESET = "connections reset, new ones refused"
    SOME_RESET = "some connections reset"
    SILENT = "silent, then all comes late"
    LOST = "silent, then reset"
    REPLIES_LOST = "requests come through, replies do not; then reset"
    HALF_CLOSED = "closed in one direction"
    SLOW = "slow"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    at_s: float
    """Seconds after the load began."""
    kind: Kind
    target: int
    """Number of the broker, producer or consumer; 0 if there is only one."""
    for_s: float
    """Seconds until it is repaired. A killed process is restarted after it."""
    moment: Moment = Moment.ANY
    hunt_s: float = 9.0
    """Maximum seconds of searching for that phase."""
    cut: Cut = Cut.RESET
    sync_delay_s: float = 0.0
    """How much longer each sync of the database takes meanwhile."""
    clock_step_s: float = 0.0
    """Clock error of a restarted broker, or of the database."""
    standby: Standby = Standby.CLOSE
    to_moment: bool = False
    """True if a restored backup is recovered up to a later moment, from the log of the lost server."""
    again: bool = False
    """True if handlers run again for redelivered messages."""


_OF_BROKERS = (Kind.KILL, Kind.PAUSE, Kind.CUT_DATABASE, Kind.CUT_CLIENTS)
OF_GATEWAYS = (Kind.GATEWAY, Kind.GATEWAY_STOP, Kind.GATEWAY_PAUSE, Kind.GATEWAY_CUT)
OF_GUEST_PRODUCERS = (Kind.GUEST_PRODUCER, Kind.GUEST_PRODUCER_PAUSE)
OF_GUEST_CONSUMERS = (Kind.GUEST_CONSUMER, Kind.GUEST_CONSUMER_PAUSE)
_OF_GUESTS = (*OF_GATEWAYS, *OF_GUEST_PRODUCERS, *OF_GUEST_CONSUMERS)
_OF_DISK = (Kind.SLOW_DISK, Kind.POWER_LOSS)
NEED_COMPILER = (Kind.CLOCK, Kind.CLOCK_KILL, *_OF_DISK)
"""What is preloaded into PostgreSQL does these."""
_MUST_BE_SHORT = (Kind.PROMOTE, Kind.SEEK, Kind.SERVICE, *_OF_DISK)
_MUST_BE = (*_MUST_BE_SHORT, Kind.RESTORE, Kind.CLOCK, Kind.CLOCK_KILL, Kind.REDRIVE)
_SPANS_S = {
    Kind.PAUSE: PAUSE_S,
    Kind.TWIN: (5.0, 8.0),
    Kind.PROMOTE: (0.4, 1.5),
    Kind.SLOW_DISK: (2.0, 8.0),
    Kind.POWER_LOSS: (0.2, 1.0),
    Kind.CLOCK: (3.0, 12.0),
    Kind.CLOCK_KILL: (2.0, 3.0),
    Kind.GATEWAY_PAUSE: (1.0, 3.5),
    Kind.GUEST_PRODUCER_PAUSE: GUEST_PAUSE_S,
    Kind.GUEST_CONSUMER_PAUSE: GUEST_PAUSE_S,
}
_OF_SERVERS = (Kind.POSTGRES, Kind.PROMOTE, Kind.PROMOTE, Kind.RESTORE)


def faults(seed: int, duration_s: float, *, without: Collection[Kind] = (), guests: bool = False) -> list[Fault]:
    """Return all faults by time. In each minute every broker is killed, paused, and cut off on both sides.

    The others are the same whatever is left out, and with clients of RocketMQ.
    """
    rng = random.Random(seed)
    found: list[Fault] = []
    if duration_s < MINUTE_S:
        found += _short(rng, duration_s)
    for minute in range(int(duration_s // MINUTE_S)):
        found += _minute(rng, minute * MINUTE_S)
    found += _of_disk(random.Random(f"disk {seed}"), duration_s)
    found += _of_chain(random.Random(f"chain {seed}"), duration_s)
    if guests:
        found += _of_guests(random.Random(f"guests {seed}"), duration_s)
    return sorted((each for each in found if each.kind not in without), key=lambda fault: fault.at_s)


def _minute(rng: random.Random, start_s: float) -> Iterator[Fault]:
    moments = rng.sample((Moment.BATCH, Moment.ASSIGNMENT, rng.choice(tuple(Moment))), BROKERS)
    for broker in range(BROKERS):
        quarter_s = (MINUTE_S - 4) / len(_OF_BROKERS)  # the last fault has begun well before the minute ends
        for place, kind in enumerate(rng.sample(_OF_BROKERS, len(_OF_BROKERS))):
            at_s = start_s + place * quarter_s + rng.uniform(0, quarter_s / 3)
            yield replace(_fault(rng, kind, broker, at_s), moment=moments[broker])
    others = [(kind, 0) for kind in (Kind.BUSINESS, Kind.REDRIVE, Kind.CLOCK, Kind.CLOCK_KILL)]
    others += [(kind, rng.randrange(BROKERS)) for kind in (Kind.TWIN, Kind.STOP, Kind.DRAIN)]
    others += [(Kind.PRODUCER, rng.randrange(PRODUCERS)), *((Kind.CONSUMER, each) for each in range(CONSUMERS))]
    others += [(Kind.KILL, OF_OTHER_SHARD), (Kind.CUT_DATABASE, OF_OTHER_SHARD)]
    for kind, target in others:
        yield _fault(rng, kind, target, start_s + rng.uniform(0, MINUTE_S - 10))
    for again, earliest_s in ((True, 20), (False, 35), (rng.random() < 0.5, 45)):
        yield replace(_fault(rng, Kind.SEEK, 0, start_s + earliest_s + rng.uniform(0, 5)), again=again)
    standbys = iter(rng.sample(tuple(Standby), 2))  # so that one of them at least is behind
    slot_s = (MINUTE_S - 4) / len(_OF_SERVERS)
    for place, kind in enumerate(rng.sample(_OF_SERVERS, len(_OF_SERVERS))):
        fault = _fault(rng, kind, 0, start_s + place * slot_s + rng.uniform(0, slot_s / 3))
        yield replace(fault, standby=next(standbys)) if kind is Kind.PROMOTE else fault


def _short(rng: random.Random, duration_s: float) -> Iterator[Fault]:
    """Return one fault of each required kind, for a run of less than a minute."""
    killed, first, second = rng.sample(range(BROKERS), BROKERS)
    yield replace(_fault(rng, Kind.PAUSE, first, 0.5), moment=Moment.BATCH, for_s=PAUSE_S[0], hunt_s=MINUTE_S)
    yield replace(_fault(rng, Kind.KILL, killed, rng.uniform(1, 3)), for_s=0.5)
    yield _fault(rng, Kind.CUT_CLIENTS, killed, duration_s * 0.6)
    yield _fault(rng, Kind.CUT_DATABASE, second, duration_s * 0.2)
    pause = _fault(rng, Kind.PAUSE, second, duration_s * 0.5)
    yield replace(pause, moment=Moment.ASSIGNMENT, for_s=PAUSE_S[0], hunt_s=MINUTE_S)
    yield _fault(rng, Kind.CONSUMER, rng.randrange(CONSUMERS), duration_s * 0.3)
    yield _fault(rng, Kind.PRODUCER, rng.randrange(PRODUCERS), duration_s * 0.4)
    yield _fault(rng, Kind.POSTGRES, 0, duration_s * 0.8)
    yield replace(_fault(rng, Kind.PROMOTE, 0, duration_s * 0.3), standby=Standby.BEHIND, for_s=1.0)
    yield replace(_fault(rng, Kind.SEEK, 0, duration_s * 0.5), again=False)


def _of_disk(rng: random.Random, duration_s: float) -> Iterator[Fault]:
    """In each minute the disk is slow, and loses what was not synced, twice each; once, where there is less time."""
    for start in range(max(1, int(duration_s // MINUTE_S))):
        for kind in _OF_DISK:
            for _ in range(2 if duration_s >= MINUTE_S else 1):
                at_s = start * MINUTE_S + rng.uniform(0.1, 0.9) * min(duration_s, MINUTE_S)
                delay_s = rng.choice(SYNC_DELAYS_S if kind is Kind.SLOW_DISK else LOSS_DELAYS_S)
                yield replace(_fault(rng, kind, 0, at_s), sync_delay_s=delay_s)


def _of_chain(rng: random.Random, duration_s: float) -> Iterator[Fault]:
    """Kill each service at random moments in each minute; once in shorter runs."""
    for start in range(max(1, int(duration_s // MINUTE_S))):
        for service in range(len(STEPS)):
            for _ in range(SERVICE_KILLS if duration_s >= MINUTE_S else 1):
                at_s = start * MINUTE_S + rng.uniform(0, min(duration_s, MINUTE_S))
                yield replace(_fault(rng, Kind.SERVICE, service, at_s), for_s=rng.uniform(0.1, 1.0))


def _of_guests(rng: random.Random, duration_s: float) -> Iterator[Fault]:
    """Apply every fault to each gateway and client, in each minute or in the available time."""
    span_s = min(duration_s, MINUTE_S)
    place_s = span_s / len(_OF_GUESTS)
    for start in range(max(1, int(duration_s // MINUTE_S))):
        for target in range(GATEWAYS):
            for place, kind in enumerate(rng.sample(_OF_GUESTS, len(_OF_GUESTS))):
                at_s = start * MINUTE_S + place * place_s + rng.uniform(0, place_s / 2)
                yield _fault(rng, kind, target, at_s)


def _fault(rng: random.Random, kind: Kind, target: int, at_s: float) -> Fault:
    step_s = rng.choice((-3600.0, 0.0, 7200.0)) if kind is Kind.KILL else 0.0
    if kind is Kind.CLOCK:
        step_s = rng.choice((-1, 1)) * rng.choice((rng.uniform(*CLOCK_STEP_S), CLOCK_LEAP_S))
    elif kind is Kind.CLOCK_KILL:
        step_s = CLOCK_LEAP_S
    return Fault(
        at_s=at_s,
        kind=kind,
        target=target,
        for_s=rng.uniform(*_SPANS_S.get(kind, (0.2, 4.0))),
        cut=rng.choice(tuple(Cut)),
        clock_step_s=step_s,
        to_moment=rng.random() < 0.5,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A fault as it was committed. Times are those of the journals."""

    fault: Fault
    began: float
    ended: float
    moment: Moment
    """Phase in which a paused broker was caught; ANY if the wanted phase was not seen."""


def missing(
    done: Sequence[Done], began: float, duration_s: float, *, without: Collection[Kind] = (), guests: bool = False
) -> list[str]:
    """Return the faults that occurred too rarely: with too few faults a run proves little."""

    def lacks(what: str, test: Callable[[Done], bool], within: Sequence[Done] = done) -> Iterator[str]:
        if not any(test(each) for each in within):
            yield what

    found = [
        *lacks("no broker was paused in the middle of a batch", lambda each: each.moment is Moment.BATCH),
        *lacks("no broker was paused in the middle of an assignment", lambda each: each.moment is Moment.ASSIGNMENT),
    ]
    for kind in (*(_MUST_BE if duration_s >= MINUTE_S else _MUST_BE_SHORT), *(_OF_GUESTS if guests else ())):
        if kind not in without:
            found += lacks(f"never: {kind.value}", lambda each, kind=kind: each.fault.kind is kind)  # type: ignore[misc]
    kinds = {"killed": {Kind.KILL}, "paused": {Kind.PAUSE}, "cut off": {Kind.CUT_DATABASE, Kind.CUT_CLIENTS}}
    for word, of in kinds.items():
        found += lacks(f"no broker was {word}", lambda each, of=of: each.fault.kind in of)  # type: ignore[misc]
        for minute in range(int(duration_s // MINUTE_S)):
            then = [
                each
                for each in done
                if each.fault.at_s // MINUTE_S == minute and each.began - began < each.fault.at_s + LATE_S_MAX
            ]
            for broker in range(BROKERS):
                found += lacks(
                    f"broker {broker} was not {word} in minute {minute + 1}",
                    lambda each, of=of, broker=broker: each.fault.kind in of and each.fault.target == broker,  # type: ignore[misc]
                    then,
                )
    return found
