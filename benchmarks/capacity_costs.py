"""Measures what one message costs each part: core time, network, write-ahead log, disk.

PostgreSQL, a broker, a tailer and a log server are processes of their own; producers, consumers and readers are this
process. Bytes are counted by relays in between, core time is what the kernel says of each process. VACUUM runs when its
work is measured, not by itself. Every message must arrive, or Mismatch is raised.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import psutil
import psycopg
from psycopg.conninfo import conninfo_to_dict

from benchmarks.capacity_model import Cost, Part, Work
from benchmarks.load import STREAMS, Arrivals, consume, run
from benchmarks.relay import Relay
from benchmarks.surroundings import broker_process, fresh_database, metaq_process, private_server, tailer_process
from txmsg.client import AsyncConsumer, AsyncProducer
from txmsg.message import Message, ReceivedMessage, TransactionState
from txmsg.metaq.interface import LogAccess, LogQueue
from txmsg.metaq.location import open_log

BODY_SIZE_BYTES: Final = 200
TOGETHER: Final = 1024
"""Concurrent callers of one producer: a busy process sends hundreds of messages per request."""
QUEUES: Final = 4
WAIT_S_MAX: Final = 300.0
TICK_S: Final = 0.01
ATTACH_S: Final = 2.0
"""Seconds until started clients have attached and wait for messages."""

_LINKS: Final[Mapping[Work, tuple[tuple[Part, str, Part], ...]]] = {
    **dict.fromkeys(
        (Work.TRANSACTION, Work.ALONE, Work.SEND, Work.ATTACHED),
        ((Part.PRODUCER, "clients", Part.BROKER), (Part.BROKER, "statements", Part.DATABASE)),
    ),
    Work.UPKEEP: ((Part.BROKER, "statements", Part.DATABASE),),
    **dict.fromkeys(
        (Work.DELIVERY, Work.DELIVERED_SINGLY, Work.WAITING),
        ((Part.CONSUMER, "clients", Part.BROKER), (Part.BROKER, "statements", Part.DATABASE)),
    ),
    Work.MIRROR: ((Part.TAILER, "replication", Part.DATABASE), (Part.TAILER, "log", Part.LOG)),
    Work.SERVE: ((Part.READER, "log", Part.LOG),),
}
"""Client, server and relay of each connection."""


class Mismatch(Exception):
    """Messages are missing or duplicated: the costs would be those of something else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Amounts of work to measure. sends: messages in batches, which are delivered, too.

    clients: those that do nothing; and producers of which each has one caller, so that every request holds one item.
    """

    seconds: float
    sends: int
    clients: int
    idle_s: float


@dataclass(slots=True)
class Measured:
    """Costs by work and part, and the rate per second at which they were measured."""

    costs: dict[Work, dict[Part, Cost]] = field(default_factory=dict)
    rates_per_s: dict[Work, float] = field(default_factory=dict)

    def table(self) -> dict[str, dict[str, dict[str, float]]]:
        """Return the table for JSON, as `capacity_model.costs_of` reads it, without zero or negative costs."""
        return {work: {part: _figures(cost) for part, cost in parts.items()} for work, parts in self.costs.items()}


def _figures(cost: Cost) -> dict[str, float]:
    return {name: round(value, 3) for name, value in asdict(cost).items() if round(value, 3) > 0}


@dataclass(slots=True)
class Count:
    """The number of completed pieces of work, set by the measuring code."""

    done: float = 0.0


class Meters:
    """Reads the resources used so far."""

    def __init__(self, relays: Mapping[str, Relay], connection: psycopg.Connection, log: Path) -> None:
        self.measured = Measured()
        self._relays = relays
        self._connection = connection
        self._log = log
        self._cores: dict[Part, Callable[[], float]] = dict.fromkeys(
            (Part.PRODUCER, Part.CONSUMER, Part.READER), time.process_time
        )

    def watch(self, part: Part, core_s: Callable[[], float]) -> None:
        """Read the core seconds of a part by this function from now on."""
        self._cores[part] = core_s

    @contextmanager
    def of(self, work: Work) -> Iterator[Count]:
        """Attribute the resources used within the block to this work; `Count` receives its amount."""
        count = Count()
        began_at, before = time.perf_counter(), self._read(work)
        yield count
        took_s, after = time.perf_counter() - began_at, self._read(work)
        if not count.done:
            raise Mismatch(f"{work}: nothing was done")
        self.measured.costs[work] = {part: (after[part] - before[part]) * (1 / count.done) for part in after}
        self.measured.rates_per_s[work] = round(count.done / took_s, 1)

    def _read(self, work: Work) -> dict[Part, Cost]:
        found: dict[Part, Cost] = {}
        for near, name, far in _LINKS[work]:
            inward, outward = self._relays[name].counts()
            for part, in_bytes, out_bytes in ((near, outward, inward), (far, inward, outward)):
                found.setdefault(part, self._read_part(part))
                found[part] += Cost(in_bytes=in_bytes, out_bytes=out_bytes)
        return found

    def _read_part(self, part: Part) -> Cost:
        core_us = self._cores[part]() * 1e6
        if part is Part.DATABASE:
            wal_bytes, kept_bytes = self._one(
                "select pg_current_wal_insert_lsn() - '0/0', sum(pg_total_relation_size(relid)) "
                "from pg_partition_tree('txmsg.message')"
            )
            return Cost(core_us=core_us, wal_bytes=float(wal_bytes), kept_bytes=float(kept_bytes))
        if part is Part.LOG:
            # Not all of its files: those in the root are replaced now and then, and may be gone the next moment.
            files = (path for kind in ("commitlog", "queues") for path in (self._log / kind).rglob("*"))
            return Cost(core_us=core_us, kept_bytes=float(sum(path.stat().st_size for path in files if path.is_file())))
        return Cost(core_us=core_us)

    def _one(self, statement: str) -> tuple[float, ...]:
        row = self._connection.execute(statement).fetchone()
        assert row is not None
        return row

    def messages(self) -> int:
        """Return the number of messages in the table."""
        return int(self._one("select count(*) from txmsg.message")[0])

    def tidy(self) -> None:
        """Run VACUUM after the work, and count its costs."""
        self._connection.execute("vacuum txmsg.half_message")
        self._connection.execute("vacuum txmsg.message")


def _core_s(process: psutil.Process) -> float:
    """Return the core seconds of a process and its children, including ended ones."""
    total = 0.0
    for each in (process, *process.children()):
        try:
            total += sum(each.cpu_times()[:4])  # user, system, and the same of children that have ended
        except psutil.NoSuchProcess:  # its parent's children's time includes it now
            continue
    return total


# ---- the work


class Messages:
    """Messages as applications send them, each with its own key and an incompressible body."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self._bytes = os.urandom(64 * 1024)
        self._numbers = itertools.count()

    def next(self) -> Message:
        number = next(self._numbers)
        start = number * 37 % (len(self._bytes) - BODY_SIZE_BYTES)
        body = self._bytes[start : start + BODY_SIZE_BYTES]
        return Message(self.topic, body, key=f"order-{number:010d}", tag="paid")


async def transact(meters: Meters, work: Work, address: str, messages: Messages, sizes: Sizes) -> int:
    """Send half messages and commit them; return their number."""
    producers, callers = (sizes.clients, 1) if work is Work.ALONE else (1, TOGETHER)
    done = 0

    async def caller(producer: AsyncProducer, until: float) -> None:
        nonlocal done
        while time.perf_counter() < until:
            half = await producer.half([messages.next()])
            await producer.end(half, TransactionState.COMMIT)
            done += 1

    async with AsyncExitStack() as stack:
        all_of_them = [
            await stack.enter_async_context(AsyncProducer(address, group="capacity")) for _ in range(producers)
        ]
        await asyncio.sleep(ATTACH_S)
        with meters.of(work) as count:
            until = time.perf_counter() + sizes.seconds
            await asyncio.gather(*(caller(each, until) for each in all_of_them for _ in range(callers)))
            meters.tidy()
            count.done = done
    return done


async def send(meters: Meters, address: str, messages: Messages, sends: int) -> int:
    """Send plain messages in batches; return their number."""
    made = [[messages.next() for _ in range(500)] for _ in range(max(1, sends // 500))]
    batches = iter(made)

    async def stream(producer: AsyncProducer) -> None:
        for batch in batches:  # one iterator: each takes the next batch
            await producer.send_many(batch)

    async with AsyncProducer(address, group="capacity") as producer:
        with meters.of(Work.SEND) as count:
            await asyncio.gather(*(stream(producer) for _ in range(STREAMS)))
            meters.tidy()
            count.done = sum(map(len, made))
    return int(count.done)


def deliver(meters: Meters, address: str, topic: str, count: int) -> None:
    """Deliver all messages of a topic to one group."""
    arrivals = Arrivals()
    with meters.of(Work.DELIVERY) as counted:
        run(consume(address, topic, "reading", count, arrivals))
        counted.done = count
    if arrivals.count != count or arrivals.repeated:
        raise Mismatch(f"{arrivals.count} of {count} messages came, {arrivals.repeated} of them again")


async def deliver_singly(meters: Meters, address: str, messages: Messages, sizes: Sizes) -> None:
    """Deliver as many messages as a group has members, repeatedly: a member has room for two. Includes the send."""
    waiting = 0
    arrived = asyncio.Event()

    async def handle(_: ReceivedMessage) -> None:
        nonlocal waiting
        waiting -= 1
        if not waiting:
            arrived.set()

    async with AsyncExitStack() as stack:
        producer = await stack.enter_async_context(AsyncProducer(address, group="capacity"))
        for _ in range(sizes.clients):
            consumer = AsyncConsumer(address, group="singly", concurrency=1)
            consumer.subscribe(messages.topic)(handle)
            await stack.enter_async_context(consumer)
        await asyncio.sleep(ATTACH_S)
        with meters.of(Work.DELIVERED_SINGLY) as count:
            until = time.perf_counter() + sizes.seconds
            while time.perf_counter() < until:
                waiting = sizes.clients
                arrived.clear()
                await producer.send_many([messages.next() for _ in range(sizes.clients)])
                async with asyncio.timeout(WAIT_S_MAX):
                    await arrived.wait()
                count.done += sizes.clients


async def idle(meters: Meters, address: str, sizes: Sizes) -> None:
    """Measure a broker without clients, with idle producers, and with idle consumers."""
    upkeep = await _waited(meters, Work.UPKEEP, 1, sizes.idle_s)
    async with AsyncExitStack() as stack:
        for _ in range(sizes.clients):
            await stack.enter_async_context(AsyncProducer(address, group="idle"))
        attached = await _waited(meters, Work.ATTACHED, sizes.clients, sizes.idle_s)
    async with AsyncExitStack() as stack:
        for _ in range(sizes.clients):
            consumer = AsyncConsumer(address, group="idle")
            consumer.subscribe("capacity.empty")(_never)
            await stack.enter_async_context(consumer)
        waiting = await _waited(meters, Work.WAITING, sizes.clients, sizes.idle_s)
    for costs in (attached, waiting):  # the broker's own upkeep is not the clients'
        for part in costs.keys() & upkeep.keys():
            costs[part] -= upkeep[part] * (1 / sizes.clients)


async def _waited(meters: Meters, work: Work, clients: int, seconds: float) -> dict[Part, Cost]:
    await asyncio.sleep(ATTACH_S)
    with meters.of(work) as count:
        await asyncio.sleep(seconds)
        count.done = clients * seconds
    return meters.measured.costs[work]


async def _never(message: ReceivedMessage) -> None:
    raise Mismatch(f"message {message.id} came from a topic to which nothing was sent")


Tailer = Callable[[], AbstractContextManager[psutil.Process]]


def prepare_mirror(meters: Meters, tailer: Tailer) -> None:
    """Create the slot, and measure a start of the tailer without work, which is subtracted later."""
    with tailer() as process:
        started_s = _core_s(process)
    meters.watch(Part.TAILER, lambda: started_s)


def mirror(meters: Meters, tailer: Tailer, log: LogAccess, topic: str, count: int) -> None:
    """Let a tailer catch up after an outage. log: for reading its end without asking its server."""
    with meters.of(Work.MIRROR) as counted, tailer() as process:
        meters.watch(Part.TAILER, partial(_core_s, process))
        deadline = time.monotonic() + WAIT_S_MAX
        while (found := _mirrored(log, topic)) < count:
            if time.monotonic() > deadline:
                raise Mismatch(f"the log holds {found} of {count} messages after {WAIT_S_MAX:g} s")
            time.sleep(TICK_S)
        counted.done = count
        ended_s = _core_s(process)
        meters.watch(Part.TAILER, lambda: ended_s)
    del meters.measured.rates_per_s[Work.MIRROR]  # its start is in it


def _mirrored(log: LogAccess, topic: str) -> int:
    return sum(each.end for each in log.ranges([LogQueue(topic, number) for number in range(QUEUES)]).values())


def serve(meters: Meters, log: LogAccess, topic: str, count: int, seconds: float) -> None:
    """Read the log into Arrow, repeatedly."""
    with meters.of(Work.SERVE) as counted:
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            wanted, read = {LogQueue(topic, number): 0 for number in range(QUEUES)}, 0
            while found := log.fetch(wanted):
                for each in found:
                    for batch in each.batches:
                        read += batch.to_arrow().num_rows
                        wanted[each.queue] = batch.end_offset
            if read != count:
                raise Mismatch(f"{read} messages were read from the log, it holds {count}")
            counted.done += read


# ---- all of it


def measure(sizes: Sizes, step: Callable[[], None]) -> Measured:
    """Measure every kind of work in sequence, and call `step` after each of seven stages."""
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="txmsg-bench-")))
        server = stack.enter_context(private_server())
        direct = fresh_database(server, "bench")
        socket = f"{conninfo_to_dict(direct)['host']}/.s.PGSQL.5432"
        relays = {name: Relay() for name in ("clients", "statements", "replication", "log")}
        for name in ("statements", "replication"):
            stack.enter_context(relays[name].leading_to(socket))
        url, replication_url = (
            f"postgresql://postgres@{relays[name].address}/bench" for name in ("statements", "replication")
        )
        connection = stack.enter_context(psycopg.connect(direct, autocommit=True))
        connection.execute("alter system set autovacuum = off")
        connection.execute("select pg_reload_conf()")
        log_address, log_server = stack.enter_context(metaq_process(place / "log"))
        stack.enter_context(relays["log"].leading_to(log_address))
        options = ("--topic-queues", str(QUEUES), "--advertise", relays["clients"].address)
        broker = stack.enter_context(broker_process(url, *options))
        stack.enter_context(relays["clients"].leading_to(broker.address))
        address = relays["clients"].address

        meters = Meters(relays, connection, place / "log")
        postmaster = psutil.Process(connection.info.backend_pid).parent()
        assert postmaster is not None
        for part, process in ((Part.DATABASE, postmaster), (Part.BROKER, broker.process), (Part.LOG, log_server)):
            meters.watch(part, partial(_core_s, process))

        sent, transacted = Messages("capacity.sent"), Messages("capacity.transacted")
        begin = meters.messages()
        sends = run(send(meters, address, sent, sizes.sends // 5))  # warms caches and plans; measured again below
        sends += run(send(meters, address, sent, sizes.sends))
        step()

        def tailer() -> AbstractContextManager[psutil.Process]:
            return tailer_process(replication_url, relays["log"].address, "--topics", "*.transacted")

        prepare_mirror(meters, tailer)
        transactions = sum(
            run(transact(meters, work, address, transacted, sizes)) for work in (Work.ALONE, Work.TRANSACTION)
        )
        if (found := meters.messages() - begin) != sends + transactions:
            raise Mismatch(f"{found} messages are in the table, {sends + transactions} were sent")
        step()
        deliver(meters, address, "capacity.sent", sends)
        step()
        run(deliver_singly(meters, address, Messages("capacity.singly"), sizes))
        step()
        run(idle(meters, address, sizes))
        step()
        with open_log(place / "log") as seen, open_log(relays["log"].address) as served:
            mirror(meters, tailer, seen, "capacity.transacted", transactions)
            step()
            serve(meters, served, "capacity.transacted", transactions, sizes.seconds)
        step()
        return meters.measured
