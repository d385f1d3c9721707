"""One consumer's link to one broker: composed of the parts that poll, settle, and keep. Knows no handlers.

Belongs to one loop.
"""

from __future__ import annotations

from collections.abc import Callable

from txmsg.client.receiving.arrivals import Arrival, Arrivals
from txmsg.client.receiving.awaited import AwaitedQueues
from txmsg.client.receiving.broker_failures import BrokerFailures
from txmsg.client.receiving.calls import LinkCalls
from txmsg.client.receiving.deliveries import Deliveries
from txmsg.client.receiving.fetch_budget import FetchBounds, FetchBudget
from txmsg.client.receiving.member import ConsumerMember
from txmsg.client.receiving.poll_sequence import PollSequence
from txmsg.client.receiving.poller import Poller
from txmsg.client.receiving.polls import LinkPolls
from txmsg.client.receiving.reports import Reports
from txmsg.client.receiving.settlements import PendingSettlements
from txmsg.client.receiving.settling import Settling
from txmsg.client.receiving.shard import Shard
from txmsg.client.receiving.unsettled import UnsettledMessages
from txmsg.client.receiving.visibility import VisibilityExtender


class Link:
    """Polls the broker at `address` while `run` runs and `stop` has not been called.

    `take` gets the arriving messages, and settles each by its `deliveries`.
    """

    def __init__(
        self, shard: Shard, address: str, member: ConsumerMember, bounds: FetchBounds, take: Callable[[Arrival], None]
    ) -> None:
        self.address = address
        self._held = held = UnsettledMessages(shard.queues)
        self._room = room = FetchBudget(held, bounds)
        self._polls = polls = LinkPolls(bounds.visibility_timeout_s)
        line, awaited, trouble = PollSequence(), AwaitedQueues(shard), BrokerFailures(member.group, address)
        settlements = PendingSettlements(member.counts)
        calls = LinkCalls(
            channel=shard.brokers.channel(address),
            member=member,
            room=room,
            line=line,
            awaited=awaited,
            trouble=trouble,
        )
        reports = Reports(
            calls=calls, held=held, settlements=settlements, polls=polls, awaited=awaited, trouble=trouble
        )
        self._settling = settling = Settling(reports, awaited, trouble)
        self.deliveries = Deliveries(held, room, settlements, reports, settling)
        arrivals = Arrivals(
            line=line,
            counts=member.counts,
            held=held,
            deliveries=self.deliveries,
            epochs=shard.epochs,
            take=take,
        )
        self._keeper = VisibilityExtender(held, room, polls, settling)
        self._poller = Poller(
            calls=calls,
            polls=polls,
            room=room,
            settlements=settlements,
            settling=settling,
            arrivals=arrivals,
            trouble=trouble,
        )

    @property
    def out(self) -> int:
        """Messages received and not settled."""
        return self._held.count

    async def run(self) -> None:
        """Poll until `stop`. After a failure of the broker it pauses and polls again."""
        await self._poller.run()

    async def extend_visibility(self) -> None:
        """Extend the visibility timeout of messages whose handlers run for long, until cancelled."""
        await self._keeper.run()

    async def idle(self) -> None:
        """Return when all messages are settled."""
        await self._room.emptied()

    async def flush(self, timeout_s: float) -> None:
        """Settle everything that waits, before the end. What is left after the time is redelivered."""
        await self._settling.flush(timeout_s)

    def apply_bounds(self, bounds: FetchBounds) -> None:
        """Apply new bounds. The poll under way has asked by the old ones."""
        self._room.apply_bounds(bounds)
        self._keeper.look_soon()

    def pause(self) -> None:
        """End the poll under way and begin no other until `resume`. Messages on their way return to the group."""
        self._polls.pause()

    def resume(self) -> None:
        """End `pause`."""
        self._polls.resume()
        self._room.changed.set()

    def stop(self) -> None:
        """End the poll under way and begin no other. Messages on their way return to the group."""
        self._polls.stop()
        self._room.changed.set()
