"""Commits the faults of a plan: one at a time for each target, concurrently for different targets."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from types import TracebackType
from typing import Self, assert_never

import psycopg

from tests.chaos import tables
from tests.chaos.cluster import Cluster
from tests.chaos.history import EXACTLY_ONCE, SOUGHT_GROUPS, SOUGHT_TOPICS, Seek
from tests.chaos.journal import Journal
from tests.chaos.moments import pause_in
from tests.chaos.plan import (
    BROKERS,
    OF_GATEWAYS,
    OF_GUEST_CONSUMERS,
    OF_GUEST_PRODUCERS,
    Done,
    Fault,
    Kind,
    Moment,
)
from tests.chaos.process import Process

_END_S_MAX = 600.0
_COMMAND_S_MAX = 60.0
_STEP_S = 0.5


class Faults:
    """Runs faults within `with`; the exit waits until all are done and repaired. `done` grows meanwhile."""

    def __init__(self, cluster: Cluster, plan: Sequence[Fault], journal: Journal, *, seed: int) -> None:
        self.done: list[Done] = []
        self.seeks: list[Seek] = []
        self.redriven: set[tuple[str, str]] = set()
        """Group and body of the dead letters before each redrive."""
        self.clock: list[tuple[float, float]] = []
        """Times at which the clock of the database was set, and its error since then."""
        self._rng = random.Random(f"seeks {seed}")
        self.began = 0.0
        self._cluster = cluster
        self._journal = journal
        self._of_broker = [threading.Lock() for _ in cluster.brokers]
        """Held during a fault of a broker's process, since one fault kills all of them at once."""
        self._ending = threading.Event()
        self._failure: BaseException | None = None
        by_actor: defaultdict[tuple[object, int], list[Fault]] = defaultdict(list)
        for fault in plan:
            by_actor[_actor(fault)].append(fault)
        self._threads = [
            threading.Thread(target=self._play, args=(each,), name=f"faults of {actor}", daemon=True)
            for actor, each in by_actor.items()
        ]

    def __enter__(self) -> Self:
        self.began = time.monotonic()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        if value is not None:
            self._ending.set()
        for thread in self._threads:
            thread.join(_END_S_MAX)
        stuck = [thread.name for thread in self._threads if thread.is_alive()]
        if value is None:
            self.check()
            assert not stuck, f"these do not end: {stuck}"

    def check(self) -> None:
        """Raise errors that occurred in committing a fault."""
        if self._failure is not None:
            raise self._failure

    def _play(self, faults: Sequence[Fault]) -> None:
        try:
            for fault in faults:
                if self._ending.wait(max(0.0, self.began + fault.at_s - time.monotonic())):
                    return
                began = time.monotonic()
                self._journal.write("fault", fault.kind.value, fault.target, fault.cut.value, fault.for_s)
                with self._of_broker[fault.target] if _actor(fault)[0] == "broker" else nullcontext():
                    moment = self._commit(fault)
                self._journal.write("mended", fault.kind.value, fault.target, moment.value)
                self.done.append(Done(fault=fault, began=began, ended=time.monotonic(), moment=moment))
        except Exception as exc:  # noqa: BLE001 - a thread's root: `check` raises it
            self._failure = exc

    def _commit(self, fault: Fault) -> Moment:
        match fault.kind:
            case Kind.PAUSE:
                return self._pause(fault)
            case Kind.KILL | Kind.STOP | Kind.DRAIN | Kind.TWIN | Kind.PRODUCER | Kind.CONSUMER | Kind.SERVICE:
                self._disturb_process(fault)
            case Kind.CUT_DATABASE | Kind.CUT_CLIENTS | Kind.BUSINESS:
                self._cut(fault)
            case Kind.POSTGRES | Kind.PROMOTE | Kind.RESTORE | Kind.SLOW_DISK | Kind.POWER_LOSS:
                self._disturb_database(fault)
            case Kind.CLOCK:
                self._step_clock(fault)
            case Kind.CLOCK_KILL:
                self._set_back_without_brokers(fault)
            case Kind.SEEK:
                self._send_back(fault)
            case Kind.REDRIVE:
                self._redrive()
            case (
                Kind.GATEWAY
                | Kind.GATEWAY_STOP
                | Kind.GATEWAY_PAUSE
                | Kind.GATEWAY_CUT
                | Kind.GUEST_PRODUCER
                | Kind.GUEST_CONSUMER
                | Kind.GUEST_PRODUCER_PAUSE
                | Kind.GUEST_CONSUMER_PAUSE
            ):
                self._disturb_guests(fault)
            case _:
                assert_never(fault.kind)
        return Moment.ANY

    def _disturb_guests(self, fault: Fault) -> None:
        guests = self._cluster.guests
        assert guests is not None
        gateway = guests.gateways[fault.target]
        match fault.kind:
            case Kind.GATEWAY:
                self._kill(gateway.process, fault.for_s)
            case Kind.GATEWAY_STOP:
                self._stop(gateway.process, fault.for_s)
            case Kind.GATEWAY_PAUSE:
                self._halt(gateway.process, fault.for_s)
            case Kind.GATEWAY_CUT:
                gateway.clients.cut(fault.cut)
                self._ending.wait(fault.for_s)
                gateway.clients.heal()
            case Kind.GUEST_PRODUCER:
                self._kill(guests.producers[fault.target], fault.for_s)
            case Kind.GUEST_CONSUMER:
                self._kill(guests.consumers[fault.target], fault.for_s)
            case Kind.GUEST_PRODUCER_PAUSE:
                self._halt(guests.producers[fault.target], fault.for_s)
            case Kind.GUEST_CONSUMER_PAUSE:
                self._halt(guests.consumers[fault.target], fault.for_s)

    def _disturb_process(self, fault: Fault) -> None:
        cluster = self._cluster
        match fault.kind:
            case Kind.KILL:
                broker = cluster.brokers[fault.target]
                broker.clock_step_s = fault.clock_step_s
                self._kill(broker.process, fault.for_s)
            case Kind.STOP:
                self._stop(cluster.brokers[fault.target].process, fault.for_s)
            case Kind.DRAIN:
                self._drain(fault)
            case Kind.TWIN:
                self._run_twin(cluster.twin_of(fault.target), fault.for_s)
            case Kind.PRODUCER:
                self._kill(cluster.producers[fault.target], fault.for_s)
            case Kind.CONSUMER:
                self._kill(cluster.consumers[fault.target], fault.for_s)
            case Kind.SERVICE:
                self._kill(cluster.chain.services[fault.target], fault.for_s)

    def _disturb_database(self, fault: Fault) -> None:
        servers, wait = self._cluster.servers, self._ending.wait
        match fault.kind:
            case Kind.POSTGRES:
                servers.crash(wait, min(fault.for_s, 1.0))
            case Kind.PROMOTE:
                servers.promote(fault.standby, wait, fault.for_s)
            case Kind.RESTORE:
                servers.restore(wait, fault.for_s, to_moment=fault.to_moment)
            case Kind.SLOW_DISK:
                with servers.slow_disk(fault.sync_delay_s):
                    wait(fault.for_s)
            case Kind.POWER_LOSS:
                servers.lose_power(wait, fault.for_s, sync_delay_s=fault.sync_delay_s)

    def _step_clock(self, fault: Fault) -> None:
        self._set_clock(fault.clock_step_s)
        self._ending.wait(fault.for_s)
        self._set_clock(0.0)

    def _set_back_without_brokers(self, fault: Fault) -> None:
        """Set the clock back while brokers are dead: their heartbeats are from a clock that was ahead."""
        brokers = [broker.process for broker in self._cluster.brokers[:BROKERS]]
        with ExitStack() as locks:
            for number in range(BROKERS):
                locks.enter_context(self._of_broker[number])
            self._set_clock(fault.clock_step_s)
            self._ending.wait(fault.for_s)
            for process in brokers:
                process.check()
                process.kill()
            self._set_clock(0.0)
            for process in brokers:
                process.start()

    def _set_clock(self, offset_s: float) -> None:
        self._cluster.servers.step_clock(offset_s)
        self.clock.append((time.monotonic(), offset_s))
        self._cluster.servers.assert_clock(offset_s)

    def _send_back(self, fault: Fault) -> None:
        """Seek one group back by some messages in one queue; further if handlers had to run again before."""
        url, last = self._cluster.notify_url, self.seeks[-1] if self.seeks else None
        group, topic = self._rng.choice(SOUGHT_GROUPS), self._rng.choice(SOUGHT_TOPICS)
        if fault.again:
            group = EXACTLY_ONCE
        if last is not None and last.again:
            group, topic = last.group, last.place[0]
        try:
            places = tables.cursors(url, group, topic)
        except psycopg.OperationalError:  # PostgreSQL is down, so the operator cannot act
            return
        if not places:
            return
        queue, back = max(places, key=lambda each: places[each]), self._rng.randint(1, 10) if fault.again else 100
        if last is not None and last.again:
            queue, places[last.place[1]] = last.place[1], last.place[2]
        offset = max(0, places[queue] - back)
        begun = time.monotonic()
        told = ["seek", group, "--topic", topic, "--queue", str(queue), "--to", str(offset), "--yes"]
        is_sure = self._command("group", *told, *(["--again"] if fault.again else []))
        self.seeks.append(Seek(group, (topic, queue, offset), fault.again, begun, time.monotonic(), is_sure))
        self._journal.write("sought", *self.seeks[-1])

    def _redrive(self) -> None:
        try:
            self.redriven |= tables.dead_letters(self._cluster.notify_url)
        except psycopg.OperationalError:
            return
        for group in self._cluster.groups:
            self._command("dead-letter", "redrive", "--group", group)

    def _kill(self, process: Process, for_s: float) -> None:
        process.check()
        process.kill()
        self._ending.wait(for_s)
        process.start()

    def _stop(self, process: Process, for_s: float) -> None:
        process.stop()
        self._ending.wait(for_s)
        process.start()

    def _halt(self, process: Process, for_s: float) -> None:
        process.pause_until_still()
        self._ending.wait(for_s)
        process.resume()

    def _pause(self, fault: Fault) -> Moment:
        broker = self._cluster.brokers[fault.target]
        moment = pause_in(fault.moment, broker, self._cluster.notify_url, hunt_s=fault.hunt_s)
        self._ending.wait(fault.for_s)
        broker.process.resume()
        return moment

    def _cut(self, fault: Fault) -> None:
        cluster = self._cluster
        if fault.kind is Kind.BUSINESS:
            link = cluster.business
        else:
            broker = cluster.brokers[fault.target]
            link = broker.database if fault.kind is Kind.CUT_DATABASE else broker.clients
        link.cut(fault.cut)
        self._ending.wait(fault.for_s)
        link.heal()

    def _drain(self, fault: Fault) -> None:
        """Drain a broker, as an operator does; a broker that cannot be drained now is skipped."""
        broker_id = f"broker-{fault.target}"
        if self._command("cluster", "drain", broker_id, "--wait-s", "0"):
            self._ending.wait(fault.for_s)
            while not self._command("cluster", "resume", broker_id) and not self._ending.wait(_STEP_S):
                continue

    def _command(self, *words: str) -> bool:
        """Run a command against any answering broker of the first database; return True on success."""
        for broker in self._cluster.brokers[:BROKERS]:
            address = f"127.0.0.1:{broker.clients.port}"
            command = [sys.executable, "-m", "txmsg.ops.cli.main", *words, "--broker", address]
            done = subprocess.run(command, capture_output=True, timeout=_COMMAND_S_MAX, check=False)
            if done.returncode == 0:
                return True
        return False

    def _run_twin(self, twin: Process, for_s: float) -> None:
        twin.start()
        self._ending.wait(for_s)
        twin.check()
        twin.kill()


def _actor(fault: Fault) -> tuple[object, int]:
    """Return the target whose faults run one after the other: faults of one broker do not overlap."""
    if fault.kind in (Kind.KILL, Kind.STOP, Kind.PAUSE, Kind.CUT_DATABASE, Kind.CUT_CLIENTS):
        return "broker", fault.target
    for kinds in (OF_GATEWAYS, OF_GUEST_PRODUCERS, OF_GUEST_CONSUMERS):
        if fault.kind in kinds:
            return kinds, fault.target
    if fault.kind in (Kind.POSTGRES, Kind.PROMOTE, Kind.RESTORE, Kind.POWER_LOSS):
        return "servers", 0
    if fault.kind in (Kind.CLOCK, Kind.CLOCK_KILL):
        return "clock", 0
    if fault.kind in (Kind.SEEK, Kind.REDRIVE):
        return "groups", 0
    return fault.kind.value, fault.target
