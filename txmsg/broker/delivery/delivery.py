"""Delivery: what the service and the cluster ask of it, put together from the parts beside this one.

Decisions are made by the pure modules; here they are acted on. All loaded is in memory, each queue's under the epoch of
its lease. When the database or the leases are lost, everything is dropped and read again from the cursors as stored:
at most the acknowledgements not yet flushed come again.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Collection, Mapping, Sequence

from txmsg.broker.cluster import Membership
from txmsg.broker.delivery.config import DeliveryConfig
from txmsg.broker.delivery.database import Database
from txmsg.broker.delivery.group import Group
from txmsg.broker.delivery.holding import to_note
from txmsg.broker.delivery.loading import Loader
from txmsg.broker.delivery.rounds import Rounds
from txmsg.broker.delivery.state import State
from txmsg.broker.delivery.values import Handout, Receipt, Refusal, Start, Subscription, Topics
from txmsg.broker.delivery.writing import Writing
from txmsg.broker.store.connect import Pool
from txmsg.errors import BrokerUnavailable
from txmsg.wire.tags import TagExpression, wants_of

__all__ = ["Delivery"]

_log = logging.getLogger(__name__)
_TOKEN_BITS = 48
"""Tokens begin at random and rise. A receipt of an earlier process of this broker, or of an incarnation of the database
in which epochs were the same, settles nothing that this one gives out."""
_NAP_S_MAX = 0.5
"""How long a member that may have nothing waits before it looks whether the broker is closing."""


class Delivery:
    """Delivers to all groups the queues that `membership` has leases of; it is the holder of these leases.

    Run it with `run()` in a task; `receive` and `settle` raise BrokerUnavailable before, after, and while the database
    is away. `rounds` has the steps that `run` repeats.
    """

    def __init__(self, pool: Pool, membership: Membership, config: DeliveryConfig, *, topics: Topics) -> None:
        membership.holder = self
        pool.incarnation.on_end(self._forget)
        self._membership = membership
        self._state = State(membership.leases, config)
        self._database = Database(pool, self._state)
        self.writing = Writing(self._state, self._database, membership)
        self._loader = Loader(self._state, self._database, membership, self.writing, topics)
        self.rounds = Rounds(self._state, self._database, self.writing, self._loader, topics)
        self._token = secrets.randbits(_TOKEN_BITS)

    # ---- for the service

    async def receive(  # noqa: PLR0917 - as the protocol lists them
        self,
        group: str,
        client_id: str,
        subscriptions: Sequence[Subscription | tuple[str, str]],
        max_messages: int,
        wait_s: float,
        visibility_timeout_s: float,
        start: Start | None = None,
    ) -> list[Handout]:
        """Up to max_messages for a member of a group, or nothing after wait_s.

        Each is in this member's hands for visibility_timeout_s; if it is neither settled nor renewed by then, it is
        retried. start: where the group begins if it is new to a topic. Raises BrokerUnavailable, InvalidName for a bad
        tag expression, and UnknownTopic.
        """
        wants = wants_of(tuple(subscriptions))
        loaded = await self._loader.group(group, wants, start)
        loaded.members.join(client_id, wants, self._state.monotonic(), self._state.config.member_ttl_s)
        messages = self._take(loaded, client_id, wants, max_messages, visibility_timeout_s)
        if not messages and wait_s > 0:
            messages = await self._wait(loaded, client_id, wants, max_messages, visibility_timeout_s, wait_s)
        feeds = [loaded.feeds[each.receipt.queue_id] for each in messages]
        if held := to_note(feeds, self._state.monotonic(), visibility_timeout_s):
            try:
                await self.writing.note_held(held, visibility_timeout_s)
                self._state.leases.require()  # not if it was paused meanwhile, and others deliver these queues by now
            except BaseException:  # also when whoever asked has gone
                loaded.untake(messages)
                for feed in feeds:
                    self._state.read_soon(feed)
                loaded.members.left(client_id)
                raise
        return messages

    async def _wait(  # noqa: PLR0917 - as `receive`
        self,
        loaded: Group,
        client_id: str,
        wants: Mapping[str, TagExpression],
        max_messages: int,
        visibility_timeout_s: float,
        wait_s: float,
    ) -> list[Handout]:
        messages: list[Handout] = []
        try:
            async with asyncio.timeout(wait_s):
                while not messages and not self._state.draining:
                    # Who may have nothing is not counted among those whom a new message wakes.
                    if (blocked_s := loaded.members.blocked_s(client_id, self._state.monotonic())) > 0:
                        await asyncio.sleep(min(blocked_s, _NAP_S_MAX))
                    else:
                        with self._state.waiting_for(wants):
                            await loaded.wait(wants)
                        if loaded.members.blocked_s(client_id, self._state.monotonic()) > 0:
                            loaded.wake(wants, 1)  # it was woken for a message that it may not have now: others may
                    messages = self._take(loaded, client_id, wants, max_messages, visibility_timeout_s)
        except TimeoutError:
            return []
        except asyncio.CancelledError:  # the call was cancelled, as gRPC does when its connection ends
            loaded.members.left(client_id)
            raise
        return messages

    def renew(self, group: str, held: Sequence[Receipt], visibility_timeout_s: float) -> list[Receipt]:
        """A member still holds these messages: their visibility timeout restarts. Returns what it does not hold."""
        self._state.leases.require()
        loaded = self._state.groups.get(group)
        return [*held] if loaded is None else loaded.renew(held, self._state.monotonic() + visibility_timeout_s)

    async def settle(
        self, group: str, client_id: str, acks: Sequence[Receipt], refusals: Sequence[Refusal]
    ) -> list[Receipt]:
        """Takes acknowledgements and refusals; returns the receipts that came too late, in no order.

        On return an acknowledgement is in memory (the cursor follows within flush_s), that of a retry and every
        refusal on disk. If interrupted, what was taken is written by the next round of `expire_once`.
        """
        self._state.leases.require()
        loaded = self._state.groups.get(group)
        if loaded is None:
            return [*acks, *(refusal.receipt for refusal in refusals)]
        expired, touched = loaded.settle(client_id, acks, refusals, self._state.monotonic())
        await self.writing.write_outcomes(loaded, touched)
        self._state.settling.settled()
        for feed in touched:
            self._state.read_soon(feed)
        return expired

    def wake(self, ends: Mapping[int, int]) -> None:
        """Queues (by id) now end before these offsets: members that wait for them get the new messages at once."""
        self._state.wake(ends)

    def members_of(self, group: str) -> list[tuple[str, float]]:
        """Who of a group asked this broker for messages of late, and how many seconds ago."""
        loaded = self._state.groups.get(group)
        return [] if loaded is None else loaded.members.present(self._state.monotonic())

    def pause_of(self, group: str) -> tuple[float, str] | None:
        """For how many seconds a group has got single messages here, because everything fails, and the last error."""
        loaded = self._state.groups.get(group)
        if loaded is None or loaded.members.pause.since is None:
            return None
        return self._state.monotonic() - loaded.members.pause.since, loaded.members.pause.last_error

    def look_soon(self) -> None:
        """Somebody has changed a group or its place: looks at once."""
        self.rounds.changed.set()

    async def flush(self) -> None:
        """Writes the acknowledgements taken so far."""
        await self.writing.flush_once()

    # ---- running

    async def run(self) -> None:
        """Delivers until `close` or cancellation."""
        await self.rounds.run()

    def drain(self) -> None:
        """Answers all waiting receives with what there is, and from now on none waits. For a graceful stop."""
        self._state.draining = True
        for group in self._state.groups.values():
            group.wake_all()

    async def close(self) -> None:
        """Stops, writes the cursors and lets another broker deliver at once. Twice, or before `run`, is fine.

        Raises BrokerUnavailable if the database is away: then the lease runs out by itself.
        """
        self.drain()
        self._state.closed.set()
        self.rounds.gained.set()
        self.rounds.changed.set()
        if self._state.leases.is_member:
            await self.finish(list(self._state.leases.epochs()))
        await self._membership.leave()
        self.drop("this broker is closing")

    # ---- leases come and go (Holder)

    def gained(self) -> None:
        """There are new leases: their queues are loaded for the groups that want them."""
        self.rounds.gained.set()

    def lost(self, queue_ids: Collection[int], why: str) -> None:
        """Forgets the windows and retries of these queues, for all groups."""
        _log.info("delivers %d queues no more: %s", len(queue_ids), why)
        self._state.leaving.difference_update(queue_ids)
        for group in {feed.group for queue_id in queue_ids for feed in self._state.feeds_of.get(queue_id, ())}:
            self._state.remove(group, queue_ids)

    async def finish(self, queue_ids: Collection[int]) -> None:
        """Gives nothing more of these queues, waits a little for what consumers have of them, writes their cursors.

        Raises BrokerUnavailable.
        """
        self._state.leaving.update(queue_ids)
        await self.writing.finish([feed for queue_id in queue_ids for feed in self._state.feeds_of.get(queue_id, ())])

    def drop(self, why: str) -> None:
        """Forgets the leases and everything in memory. Waiting members get BrokerUnavailable."""
        self._state.drop(why)

    # ---- inside

    def _forget(self, why: str) -> None:
        """The database has gone back: what was given out before says nothing of what it holds now."""
        self.drop(why)
        self._state.given.clear()

    def _take(
        self, group: Group, client_id: str, wants: Mapping[str, TagExpression], count: int, visibility_timeout_s: float
    ) -> list[Handout]:
        self._state.leases.require()
        if self._state.groups.get(group.name) is not group:
            raise BrokerUnavailable("delivery has started again from its stored cursors: retry")
        now = self._state.monotonic()
        count = int(min(count, group.members.room(client_id, now)))
        if not count:
            return []
        self._token += 1
        messages = group.take(
            wants,
            count,
            self._state.config.reply_size_bytes_max,
            token=self._token,
            deadline=now + visibility_timeout_s,
            deadline_max=now + max(visibility_timeout_s, self._state.config.held_s_max),
        )
        if messages:
            given = sum(len(each.rows) for each in messages)
            group.members.given(client_id, given, token=self._token, now=now, visibility_timeout_s=visibility_timeout_s)
        for topic in wants:
            for feed in group.topics[topic]:
                self._state.read_soon(feed)
        return messages
