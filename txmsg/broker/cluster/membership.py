"""This broker among the others: its heartbeat, the assignment of queues, and their hand-over.

There is no leader. Every broker repeats the same step each second: it sends its heartbeat, declares brokers dead whose
heartbeats have stopped, and assigns the queues if something has changed. The others find the work of the first done
(decision 3).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Protocol
from uuid import UUID

from txmsg.broker.cluster.assignment import assigned
from txmsg.broker.cluster.clock import Heartbeats
from txmsg.broker.cluster.leases import Leases
from txmsg.broker.store import brokers as brokers_store
from txmsg.broker.store import leases as leases_store
from txmsg.broker.store import waits as waits_store
from txmsg.broker.store.connect import Connection, Pool, notify, session
from txmsg.broker.store.incarnation import current_incarnation
from txmsg.errors import BrokerUnavailable
from txmsg.message import QueueId
from txmsg.runtime.logs import EventLog

_log = EventLog(__name__)

_LOOK_S = 10.0
"""Seconds after which the assignment is checked although nothing seems to have changed."""


class Holder(Protocol):
    """Delivers the queues of which this broker holds leases."""

    def gained(self) -> None:
        """Load the queues of new leases."""
        ...

    def lost(self, queue_ids: Collection[QueueId], why: str) -> None:
        """Drop these queues, which another broker has now."""
        ...

    def drop(self, why: str) -> None:
        """Drop everything in memory, including the leases: it is invalid."""
        ...

    async def finish(self, queue_ids: Collection[QueueId]) -> None:
        """Return when nothing of these queues is in flight any more, or soon, and their cursors are written."""
        ...


class Membership:
    """A broker's place in the registry. `run` repeats `step_once`, each second and whenever `look_soon` is called."""

    def __init__(
        self, pool: Pool, leases: Leases, *, release: str, schema_revision: str, heartbeat_s: float = 1.0
    ) -> None:
        self.leases = leases
        self.address = ""
        """The address at which clients reach this broker; set before it runs."""
        self.holder: Holder | None = None
        self.brokers: tuple[brokers_store.LiveBroker, ...] = ()
        """The live brokers by id, including this one."""
        self.is_cut_off = False
        """True if the last step did not reach the database. Clients with another database to use are told."""
        self._on_clock_set: list[Callable[[float], None]] = []
        self._heartbeats = Heartbeats(leases.ttl_s)
        self._pool = pool
        self._release = release
        self._schema_revision = schema_revision
        self._heartbeat_s = heartbeat_s
        self._step_s_max = leases.ttl_s - heartbeat_s  # a step that takes longer is too late
        self._joined_at: datetime | None = None
        self._state = "active"
        self._seen_epoch = -1
        self._seen: object = None
        self._looked_at = 0.0
        self._handing_over: dict[int, asyncio.Task[None]] = {}
        self._stepping = asyncio.Lock()
        self._soon = asyncio.Event()
        self._changed = asyncio.Event()
        self._leaving = False
        self._said = ""

    # ---- what others ask

    @property
    def is_draining(self) -> bool:
        """True if an operator drains this broker: it hands its queues over and accepts no more messages."""
        return self._state == "draining"

    @property
    def is_alone(self) -> bool:
        """True if this is the only known broker."""
        return self.leases.is_member and len(self.brokers) <= 1

    def addresses(self) -> list[str]:
        """Return the addresses of the brokers, those that accept messages first. Empty while unknown."""
        if not self.leases.is_member:
            return []
        return [
            broker.address for broker in sorted(self.brokers, key=lambda broker: (broker.state != "active", broker.id))
        ]

    def draining(self) -> list[str]:
        """Return the addresses of brokers that accept no more messages."""
        return [broker.address for broker in self.brokers if broker.state != "active"]

    def of_others(self, ends: Mapping[int, int]) -> dict[int, int]:
        """Return the part of `ends`, by queue id, that other brokers deliver."""
        if self.is_alone:
            return {}
        mine = self.leases.epochs()
        return {queue_id: end for queue_id, end in ends.items() if queue_id not in mine}

    async def changed(self) -> None:
        """Return when a broker has joined, left or changed."""
        await self._changed.wait()

    def on_clock_set(self, renew: Callable[[float], None]) -> None:
        """Call this when the database's clock is set, with the step in s; -inf: back, before this broker started."""
        self._on_clock_set.append(renew)

    def look_soon(self) -> None:
        """Run the next step at once."""
        self._soon.set()

    def reread_leases(self) -> None:
        """Read the leases again at once: one has turned out to be lost."""
        self._seen_epoch = -1
        self._soon.set()

    # ---- running

    async def run(self) -> None:
        """Take part in the cluster until cancelled."""
        try:
            while not self._leaving:
                self._soon.clear()  # before the step, which may miss a change that is announced during it
                try:
                    await self.step_once()
                except BrokerUnavailable as exc:
                    _log.debug(
                        "cluster.heartbeat_failed", "%(error)s", error=exc
                    )  # the holder has logged it as a warning once
                except Exception:  # noqa: BLE001 - the root of a task
                    _log.exception("cluster.heartbeat_failed", "a heartbeat failed; it is tried again")
                try:
                    async with asyncio.timeout(self._heartbeat_s if self.leases.is_held() else self._heartbeat_s / 2):
                        await self._soon.wait()
                except TimeoutError:
                    continue
        finally:
            for task in self._handing_over.values():
                task.cancel()

    async def step_once(self) -> None:
        """Send one heartbeat and do the work that follows from it. Raises BrokerUnavailable without the database."""
        async with self._stepping:
            if self._leaving:
                return
            if self.leases.is_member and not self.leases.is_held():
                self._drop("the leases expired before a heartbeat could renew them")
            incarnation = await self._current_incarnation()
            async with self._session() as conn:
                if self.leases.clock.read_s is None:
                    await self._read_clock(conn)
                if not self.leases.is_member and not await self._join(conn, incarnation):
                    return
                if await self._beat(conn, incarnation):
                    await self._read_registry(conn)

    async def leave(self) -> None:
        """Give up all leases, so that others need not wait for them to expire. Idempotent; also before `run`."""
        self._leaving = True
        async with self._stepping:
            joined_at, self._joined_at = self._joined_at, None
            if joined_at is None:
                return
            self.leases.lose("it is closing")
            async with self._session() as conn:
                await brokers_store.leave(conn, self.leases.broker_id, joined_at)
                await notify(conn, "leases")

    # ---- inside

    async def _current_incarnation(self) -> UUID:
        try:
            return await current_incarnation(self._pool, timeout_s=self._step_s_max)
        except BrokerUnavailable as exc:
            self._lose_database(exc)
            raise

    async def _join(self, conn: Connection, incarnation: UUID) -> bool:
        joined_at = await brokers_store.join(
            conn,
            incarnation,
            self.leases.broker_id,
            self._joined_at,
            silent_since=self._heartbeats.silent(self.leases.monotonic()).get(self.leases.broker_id),
            address=self.address,
            state=self._state,
            release=self._release,
            schema_revision=self._schema_revision,
            ttl_s=self.leases.ttl_s,
        )
        if joined_at is None:
            await self._stand_by(conn)
            return False
        self._joined_at, self._seen = joined_at, None
        self.leases.incarnation = incarnation
        self.brokers = ()  # so that clients are told, though they may be the same as before
        self._seen_epoch = -1
        return True

    async def _beat(self, conn: Connection, incarnation: UUID) -> bool:
        assert self._joined_at is not None
        asked_at, losses = self.leases.monotonic(), self.leases.losses
        beat = await brokers_store.beat(conn, incarnation, self.leases.broker_id, self._joined_at, self.leases.ttl_s)
        if beat is None:
            self._drop("the other brokers have declared this one dead: its heartbeats came too late")
            return False
        state, now_s = beat
        if step_s := self.leases.clock.note(now_s, asked_at, self.leases.monotonic()):
            self._note_clock_set(step_s)
        if self.leases.losses != losses:  # lost while the heartbeat was on its way: this broker must join again
            return False
        self._state = state
        self.leases.renew(asked_at)
        self._said = ""
        return True

    async def _read_registry(self, conn: Connection) -> None:
        """Declare silent brokers dead, assign queues if something has changed, and read this broker's leases."""
        looked_at = self.leases.monotonic()
        silent = self._heartbeats.silent(looked_at)
        # If the clock was set forward, the last heartbeats of the others seem old until they send the next ones. It may
        # also have been set since this broker's own heartbeat: so the time that this broker has read is compared, not
        # now().
        clock = self.leases.clock
        expired_at_s = None if clock.was_set_forward(looked_at, self.leases.ttl_s) else clock.read_s
        dead = await brokers_store.mark_dead(conn, silent, expired_at_s=expired_at_s)
        for broker_id in dead:
            _log.warning(
                "cluster.broker_dead",
                "broker %(broker)s sends no heartbeats: its queues are assigned to others",
                broker=broker_id,
            )
        brokers, youngest_queue = await brokers_store.live_brokers(conn)
        self._heartbeats.note(((broker.id, broker.heartbeat_at) for broker in brokers), self.leases.monotonic())
        self._set_brokers(tuple(brokers))
        epoch = await leases_store.lease_epoch(conn)
        states = tuple((broker.id, broker.state) for broker in brokers)
        now = self.leases.monotonic()
        if self._seen != (epoch, states, youngest_queue) or now >= self._looked_at + _LOOK_S:
            raised = await self._assign(conn, epoch, states)
            # Assigned once more after a change: a queue whose lease was locked was skipped.
            self._seen = (epoch, states, youngest_queue) if raised == epoch else None
            self._looked_at, epoch = now, raised
        if dead:
            await notify(conn, "brokers")
        if epoch != self._seen_epoch:
            await self._read_leases(conn)
            self._seen_epoch = epoch

    async def _assign(self, conn: Connection, epoch: int, states: Collection[tuple[str, str]]) -> int:
        """Spread the queues. Returns the epoch; -1 if another broker was faster: the next step reads the result."""
        active = [broker_id for broker_id, state in states if state == "active"]
        draining = [broker_id for broker_id, state in states if state != "active"]
        moves = assigned(await leases_store.queues(conn), active, draining)
        if not moves:
            return epoch
        raised = await leases_store.assign(conn, epoch, moves.given, moves.wanted)
        if raised is None:
            return -1
        _log.info(
            "cluster.assigned",
            "assigned %(queues)d queues, and requested the hand-over of %(wanted)d",
            queues=len(moves.given),
            wanted=len(moves.wanted),
        )
        if not self.is_alone:
            await notify(conn, "leases")
        return raised

    async def _read_leases(self, conn: Connection) -> None:
        assert self.holder is not None
        change = self.leases.set(await leases_store.leases_of(conn, self.leases.broker_id))
        if change.lost:
            self.holder.lost(change.lost, "they are assigned to another broker")
        if change.gained:
            self.holder.gained()
        queues = {queue_id: epoch for queue_id, epoch in change.wanted.items() if queue_id not in self._handing_over}
        if queues:
            task = asyncio.create_task(self._hand_over(queues), name="hand over")
            self._handing_over.update(dict.fromkeys(queues, task))

    async def _hand_over(self, queues: dict[QueueId, int]) -> None:
        """Finish the messages in flight of these queues (id: epoch), write their cursors, and end their leases."""
        assert self.holder is not None
        incarnation = self.leases.incarnation
        try:
            await self.holder.finish(queues)
            # Before the lease ends in the database: from then on another broker delivers.
            self.leases.give_up(queues)
            self.holder.lost(queues, "they were handed over")
            async with self._session() as conn:
                await leases_store.hand_over(conn, incarnation, self.leases.broker_id, list(queues.items()))
                await notify(conn, "leases")
        except BrokerUnavailable as exc:
            _log.debug("cluster.hand_over_failed", "%(error)s", error=exc)
        except Exception:  # noqa: BLE001 - the root of a task
            _log.exception(
                "cluster.hand_over_failed",
                "handing over %(queues)d queues failed; it is tried again",
                queues=len(queues),
            )
        finally:
            for queue_id in queues:
                del self._handing_over[queue_id]
            self._seen_epoch = -1  # queues that are left are read again
            self.look_soon()

    async def _read_clock(self, conn: Connection) -> None:
        asked_at = self.leases.monotonic()
        now_s, is_set_back = await waits_store.clock(conn)
        self.leases.clock.note(now_s, asked_at, self.leases.monotonic())
        if is_set_back:
            self._note_clock_set(-math.inf)

    def _note_clock_set(self, step_s: float) -> None:
        if math.isinf(step_s):
            set_by = "back before this broker started"
        else:
            set_by = f"{'forward' if step_s > 0 else 'back'} by {abs(step_s):.0f} s"
        _log.warning(
            "cluster.clock_set",
            "the clock of the database was set %(step)s: what waits for a time of before is due early, or waits again",
            step=set_by,
        )
        for renew in self._on_clock_set:
            renew(step_s)

    def _set_brokers(self, brokers: tuple[brokers_store.LiveBroker, ...]) -> None:
        before = [(broker.id, broker.address, broker.state) for broker in self.brokers]
        self.brokers = brokers
        if before != [(broker.id, broker.address, broker.state) for broker in brokers]:
            self._tell_changed()

    def _set_cut_off(self, is_cut_off: bool) -> None:
        if self.is_cut_off != is_cut_off:
            self.is_cut_off = is_cut_off
            self._tell_changed()

    def _tell_changed(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _stand_by(self, conn: Connection) -> None:
        """Log the broker that is registered under this id: another one, or this one from before it was restarted."""
        registered = await brokers_store.registered(conn, self.leases.broker_id)
        self._heartbeats.note(
            [] if registered is None else [(self.leases.broker_id, registered[1])], self.leases.monotonic()
        )
        if registered is None or registered[0] == self.address:
            why = (
                f"its registration of before this start holds for up to {self.leases.ttl_s:g} s, because it did not "
                "end in good order; then it joins"
            )
            level = logging.INFO
        else:
            why = (
                f"another broker with the id {self.leases.broker_id} is alive at {registered[0]}: give each its own "
                f"--id; one that has ended is forgotten within {self.leases.ttl_s:g} s"
            )
            level = logging.WARNING
        if why != self._said:
            _log.log(
                level, "cluster.not_joined", "this broker accepts messages but delivers none: %(error)s", error=why
            )
            self._said = why
        self._drop(why)

    def _drop(self, why: str) -> None:
        if self.holder is not None:
            self.holder.drop(why)
        self.leases.lose(why)

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[Connection]:
        """Yield a connection for one step.

        If the database is away, drop everything in memory and raise BrokerUnavailable.
        """
        try:
            async with session(self._pool, timeout_s=self._step_s_max) as conn:
                yield conn
        except BrokerUnavailable as exc:
            self._lose_database(exc)
            raise
        self._set_cut_off(False)

    def _lose_database(self, exc: BrokerUnavailable) -> None:
        self._drop(str(exc))
        self._set_cut_off(True)
