"""Assigns queues to brokers. Pure: knows no database and no clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from txmsg.broker.store.leases import QueueRow
from txmsg.message import QueueId


@dataclass(frozen=True, slots=True)
class Assignment:
    """The changes of an assignment.

    given: queues that no live broker delivers, and their new brokers. wanted: queues that a live broker delivers, and
    the brokers to which it hands them over (None: the hand-over is cancelled).
    """

    given: dict[QueueId, str] = field(default_factory=dict)
    wanted: dict[QueueId, str | None] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.given or self.wanted)


def assigned(queues: Sequence[QueueRow], active: Collection[str], draining: Collection[str] = ()) -> Assignment:
    """Spread queues evenly over the active brokers with as few moves as possible.

    Loads differ by at most one queue, counting each queue for the broker that is to have it. Draining brokers get
    nothing and give theirs away; without an active broker everything stays where it is. Consecutive queues, as those of
    a topic are, go to different brokers. The same input gives the same answer.
    """
    if not active:
        return Assignment()
    alive = {*active, *draining}
    of, homeless = _homes(queues, active, alive)
    homeless += _surplus(of, len(queues))
    room = _room(of, len(queues))
    to: dict[QueueId, str] = {row.queue_id: broker for broker, rows in of.items() for row in rows}
    # In the order of ids and to the broker with the most room: so consecutive queues, those of one topic, spread.
    for row in sorted(homeless):
        broker = _next(row, room)
        room[broker] -= 1
        to[row.queue_id] = broker
    given = {row.queue_id: to[row.queue_id] for row in queues if row.broker_id not in alive}
    wanted = {
        row.queue_id: None if to[row.queue_id] == row.broker_id else to[row.queue_id]
        for row in queues
        if row.broker_id in alive and to[row.queue_id] != (row.wanted_by or row.broker_id)
    }
    return Assignment(given, wanted)


def _homes(
    queues: Sequence[QueueRow], active: Collection[str], alive: Collection[str]
) -> tuple[dict[str, list[QueueRow]], list[QueueRow]]:
    """Return the queues by the active broker that is to have them at present, and those that need another one."""
    of: dict[str, list[QueueRow]] = {broker: [] for broker in sorted(active)}
    homeless: list[QueueRow] = []
    for row in queues:
        if row.broker_id in alive and row.wanted_by in of:
            of[row.wanted_by].append(row)
        elif row.broker_id in of:
            of[row.broker_id].append(row)
        else:
            homeless.append(row)
    return of, homeless


def _shares(of: Mapping[str, Sequence[QueueRow]], count: int) -> dict[str, int]:
    """Return the number of queues of each broker, of `count`. The fullest have one more: that moves the fewest."""
    least, more = divmod(count, len(of))
    order = sorted(of, key=lambda broker: (-len(of[broker]), broker))
    return {broker: least + (place < more) for place, broker in enumerate(order)}


def _surplus(of: Mapping[str, list[QueueRow]], count: int) -> list[QueueRow]:
    """Remove from each broker the queues beyond its share, and return them."""
    taken: list[QueueRow] = []
    for broker, share in _shares(of, count).items():
        # Queues still on their way to the broker go first, because they have not moved yet; then the youngest.
        rows = sorted(of[broker], key=lambda row: (row.broker_id != broker, row.queue_id))
        of[broker][:], rest = rows[:share], rows[share:]
        taken += rest
    return taken


def _room(of: Mapping[str, Sequence[QueueRow]], count: int) -> Counter[str]:
    """Return the number of queues that each broker lacks."""
    return Counter({broker: share - len(of[broker]) for broker, share in sorted(_shares(of, count).items())})


def _next(row: QueueRow, room: Counter[str]) -> str:
    """Return the new broker of a queue: the one that wants it or its holder if it has room, else the one with most."""
    for broker in (row.wanted_by, row.broker_id):
        if broker is not None and room.get(broker, 0) > 0:
            return broker
    return max(room, key=lambda broker: room[broker])  # the first of equals
