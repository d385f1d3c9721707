"""Computes the machines for a load from the costs of one message in each part. Pure: measures nothing.

It multiplies: a cost is taken to be the same on a larger machine and beside more of its kind. docs/scaling.md says what
of this was measured and what was not.

A shard is a Notify database and all that belongs to it alone: its brokers, its tailer, its log. Shards know nothing of
each other, so what one shard cannot carry is spread over more of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from math import ceil
from typing import Final, Self

REPLY_COUNT_BACKLOGGED: Final = 8
"""A consumer asks for more when a quarter of its window, twice its 16 handlers, is free."""
BROKERS_PER_SHARD: Final = 2
"""Two at least, so that one may die."""


class Part(StrEnum):
    """A process, or the processes of one kind."""

    PRODUCER = "producer"
    BROKER = "broker"
    DATABASE = "database"
    CONSUMER = "consumer"
    TAILER = "tailer"
    LOG = "log server"
    READER = "log reader"


class Work(StrEnum):
    """A kind of work, measured per piece."""

    TRANSACTION = "transaction"
    """A half message and its commit, among many in one request."""
    ALONE = "transaction, alone in its requests"
    SEND = "plain send"
    """One message of a large batch."""
    DELIVERY = "delivery"
    """One message to one group, among many in one reply."""
    DELIVERED_SINGLY = "delivery, one or two in a reply"
    ATTACHED = "idle producer, a second"
    WAITING = "idle consumer, a second"
    UPKEEP = "idle broker, a second"
    MIRROR = "mirroring"
    """One message, from PostgreSQL's WAL into a MetaQ log."""
    SERVE = "log reading"
    """One message, to one reader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The resources of a part for one piece of work; also used for sums, and for rates per second."""

    core_us: float = 0.0
    in_bytes: float = 0.0
    """Bytes over the network, to this part."""
    out_bytes: float = 0.0
    wal_bytes: float = 0.0
    kept_bytes: float = 0.0
    """Disk space used while the message is kept."""

    def __add__(self, other: Cost) -> Self:
        return type(self)(**{each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)})

    def __mul__(self, factor: float) -> Self:
        return type(self)(**{each.name: getattr(self, each.name) * factor for each in fields(self)})

    def __sub__(self, other: Cost) -> Self:
        return self + other * -1

    @property
    def cores(self) -> float:
        """Return the cores used at a rate per second."""
        return self.core_us / 1e6

    @property
    def disk_bytes(self) -> float:
        """Return the bytes written: the write-ahead log, and once the kept data."""
        return self.wal_bytes + self.kept_bytes


Costs = Mapping[Work, Mapping[Part, Cost]]
NOTHING: Final = Cost()


def costs_of(table: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Costs:
    """Return the costs of a measured table from JSON. Raises ValueError or TypeError for an invalid one."""
    return {
        Work(work): {Part(part): Cost(**figures) for part, figures in parts.items()} for work, parts in table.items()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One of many identical machines."""

    cores: int = 16
    disk_bytes_per_s: float = 1e9
    """Sequential write and sync rate."""
    disk_bytes: float = 4e12
    network_bytes_per_s: float = 1.25e9
    """In each direction."""
    filled: float = 0.5
    """Planned utilisation. The rest is for peaks, vacuum and checkpoints, and failed neighbours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load of all shards together."""

    name: str
    transactions_per_s: float = 0.0
    sends_per_s: float = 0.0
    deliveries_per_s: float = 0.0
    """All groups together."""
    is_mirrored: bool = False
    is_replicated: bool = False
    is_backlogged: bool = False
    """True if delivered messages have waited, and arrive many at a time."""
    log_appends_per_s: float = 0.0
    """By producers of the log, in addition to mirrored messages."""
    log_reads_per_s: float = 0.0
    """All groups and jobs together."""
    kept: float = 0.0
    """Messages in the Notify databases: waiting, or not dropped yet."""
    log_kept: float = 0.0
    """Messages in the logs."""
    producers: int = 1
    """Number of processes."""
    consumers: int = 1
    is_split: bool = False
    """True if each process uses one shard only, as in applications without traffic between shards."""
    call_s: float = 0.05
    """Seconds that a call may take. Messages sent meanwhile share the next request, and deliveries the next reply: so
    calls grow with the load, and busy brokers are asked less often."""

    @property
    def items_per_request(self) -> float:
        """Return the transactions of one producer that share a request."""
        return max(1.0, self.transactions_per_s / self.producers * self.call_s)


@dataclass(frozen=True, slots=True)
class Need:
    """The number of shards needed for one resource. A fraction, so that needs can be compared."""

    part: Part
    of: str
    shards: float


@dataclass(frozen=True, slots=True)
class Row:
    """One part, in all shards together."""

    part: Part
    processes: int
    machines: int
    """0 if it runs on machines counted elsewhere, or on the application's."""
    takes: Cost
    """Resources per second."""
    keeps_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """The machines needed for a load."""

    load: Load
    shards: int
    needs: tuple[Need, ...]
    """The greatest first: it is the bottleneck."""
    rows: tuple[Row, ...]
    of_brokers: Mapping[str, float]
    """Share of the brokers' cores by work."""
    catch_up: float | None
    """Catch-up rate of a tailer as a multiple of the load; None if nothing is mirrored."""

    @property
    def machines(self) -> int:
        return sum(row.machines for row in self.rows)


class TooManyClients(ValueError):
    """Raised if idle clients alone exceed the planned utilisation of a broker: more brokers would not help."""


def plan(costs: Costs, load: Load, machine: Machine) -> Plan:
    """Return the machines of this type that the load needs. Raises TooManyClients."""
    takes = _takes(costs, load)
    kept_bytes = {
        Part.DATABASE: load.kept * _cost(costs, Work.TRANSACTION, Part.DATABASE).kept_bytes,
        Part.LOG: load.log_kept * _cost(costs, Work.MIRROR, Part.LOG).kept_bytes,
    }
    needs = sorted(_needs(costs, load, machine, takes, kept_bytes), key=lambda need: need.shards, reverse=True)
    shards = max(1, ceil(needs[0].shards))
    rows = [Row(Part.PRODUCER, load.producers, 0, takes[Part.PRODUCER])]
    of_brokers: dict[str, float] = {}
    if load.transactions_per_s or load.sends_per_s or load.deliveries_per_s:
        brokers, spent = _brokers(costs, load, machine, takes[Part.BROKER], shards)
        brokers_take = sum(spent.values(), start=NOTHING)
        of_brokers = {name: each.cores for name, each in spent.items()}
        copies = 2 if load.is_replicated else 1
        upkeep = _cost(costs, Work.UPKEEP, Part.DATABASE) * brokers
        rows += [
            Row(Part.BROKER, brokers, _machines_for_processes(brokers, brokers_take, machine), brokers_take),
            Row(
                Part.DATABASE,
                copies * shards,
                copies * shards,
                takes[Part.DATABASE] + upkeep,
                kept_bytes[Part.DATABASE],
            ),
            Row(Part.CONSUMER, load.consumers, 0, takes[Part.CONSUMER]),
        ]
    if load.is_mirrored:
        rows.append(Row(Part.TAILER, 2 * shards, 0, takes[Part.TAILER]))  # one of each two stands by, beside the log
    if load.is_mirrored or load.log_appends_per_s or load.log_reads_per_s:
        both = takes[Part.LOG] + takes[Part.TAILER]
        processes = shards * (3 if load.is_mirrored else 1)
        machines = max(
            _machines_for_processes(processes, both, machine), ceil(kept_bytes[Part.LOG] / _planned_disk(machine))
        )
        rows.append(Row(Part.LOG, shards, min(shards, machines), takes[Part.LOG], kept_bytes[Part.LOG]))
        rows.append(Row(Part.READER, 0, 0, takes[Part.READER]))
    return Plan(load, shards, tuple(needs), tuple(rows), of_brokers, _catch_up(costs, load, takes, shards))


def _takes(costs: Costs, load: Load) -> dict[Part, Cost]:
    """Return the resources per second of each part; for brokers, those independent of their number."""
    per_s = {
        Work.TRANSACTION: load.transactions_per_s,
        Work.SEND: load.sends_per_s,
        Work.DELIVERY: load.deliveries_per_s,
        Work.SERVE: load.log_reads_per_s,
        Work.MIRROR: load.transactions_per_s + load.sends_per_s if load.is_mirrored else 0.0,
    }
    takes = {
        part: sum((_cost(costs, work, part) * rate for work, rate in per_s.items()), start=NOTHING) for part in Part
    }
    takes[Part.PRODUCER] += _requests(costs, load, Part.PRODUCER)
    takes[Part.LOG] += _cost(costs, Work.MIRROR, Part.LOG) * load.log_appends_per_s
    return takes


def _requests(costs: Costs, load: Load, part: Part) -> Cost:
    """Return the overhead of requests. Without the database: it gets batches, however small requests are."""
    more = _more(_cost(costs, Work.ALONE, part), _cost(costs, Work.TRANSACTION, part))
    return more * (load.transactions_per_s / load.items_per_request)


def _more(alone: Cost, together: Cost) -> Cost:
    """Return the additional cost of a single item per call over one of many."""
    return Cost(**{each.name: max(0.0, getattr(alone - together, each.name)) for each in fields(Cost)})


def _cost(costs: Costs, work: Work, part: Part) -> Cost:
    return costs.get(work, {}).get(part, NOTHING)


def _planned_disk(machine: Machine) -> float:
    return machine.disk_bytes * machine.filled


def _needs(
    costs: Costs, load: Load, machine: Machine, takes: Mapping[Part, Cost], kept_bytes: Mapping[Part, float]
) -> Iterator[Need]:
    """Return the limits of a shard: its database machine, its log machine, and single-core processes."""
    for part, kept in kept_bytes.items():
        rate = takes[part]
        network_bytes = max(rate.in_bytes, rate.out_bytes + (rate.wal_bytes if load.is_replicated else 0.0))
        yield Need(part, "cores", rate.cores / (machine.cores * machine.filled))
        yield Need(part, "disk speed", rate.disk_bytes / (machine.disk_bytes_per_s * machine.filled))
        yield Need(part, "disk space", kept / _planned_disk(machine))
        yield Need(part, "network", network_bytes / (machine.network_bytes_per_s * machine.filled))
    mirrored_per_s = load.transactions_per_s + load.sends_per_s if load.is_mirrored else 0.0
    decoding = _cost(costs, Work.MIRROR, Part.DATABASE) * mirrored_per_s
    yield Need(Part.DATABASE, "the one core that decodes its log", decoding.cores / machine.filled)
    yield Need(Part.TAILER, "its one core", takes[Part.TAILER].cores / machine.filled)
    yield Need(Part.LOG, "its one core", takes[Part.LOG].cores / machine.filled)


def _brokers(
    costs: Costs, load: Load, machine: Machine, for_messages: Cost, shards: int
) -> tuple[int, dict[str, Cost]]:
    """Return the number of broker processes, each on its own core, and their cores by work.

    Every client stays attached to every broker of its shards, and a call of every consumer waits at all of them. So a
    broker more takes a share of the messages from the others, and nothing of that.
    """
    producers, consumers = (each / (shards if load.is_split else 1) for each in (load.producers, load.consumers))
    idle = (
        _cost(costs, Work.ATTACHED, Part.BROKER) * producers
        + _cost(costs, Work.WAITING, Part.BROKER) * consumers
        + _cost(costs, Work.UPKEEP, Part.BROKER)
    )
    if idle.cores >= machine.filled:
        raise TooManyClients(
            f"{producers:,.0f} producers and {consumers:,.0f} consumers that do nothing take {idle.cores:.2f} of a "
            f"core of every broker, and {machine.filled:g} is planned for: let not every process use every shard"
        )
    reply = _more(_cost(costs, Work.DELIVERED_SINGLY, Part.BROKER), _cost(costs, Work.DELIVERY, Part.BROKER))
    replies_per_s = load.deliveries_per_s / (REPLY_COUNT_BACKLOGGED if load.is_backlogged else 1)
    brokers = BROKERS_PER_SHARD * shards
    while True:
        replies_per_s_max = min(replies_per_s, consumers * brokers / load.call_s)
        spent = {
            "messages": for_messages,
            "calls": reply * replies_per_s_max + _requests(costs, load, Part.BROKER),
            "idle clients": idle * brokers,
        }
        if sum(each.cores for each in spent.values()) <= brokers * machine.filled:
            return brokers, spent
        brokers += 1


def _machines_for_processes(processes: int, takes: Cost, machine: Machine) -> int:
    """Return machines for processes that each use a core and store nothing."""
    network_bytes = max(takes.in_bytes, takes.out_bytes)
    return max(
        ceil(processes / machine.cores),
        ceil(network_bytes / (machine.network_bytes_per_s * machine.filled)),
        ceil(takes.disk_bytes / (machine.disk_bytes_per_s * machine.filled)),
    )


def _catch_up(costs: Costs, load: Load, takes: Mapping[Part, Cost], shards: int) -> float | None:
    """Return the catch-up factor: see Plan. The log server also serves its readers meanwhile."""
    per_s = load.transactions_per_s + load.sends_per_s
    if not load.is_mirrored or not per_s:
        return None
    decoding, tailing, appending = (
        _cost(costs, Work.MIRROR, part).cores for part in (Part.DATABASE, Part.TAILER, Part.LOG)
    )
    free = 1.0 - (takes[Part.LOG].cores - appending * per_s) / shards
    return shards / per_s / max(decoding, tailing, appending / free)
