"""Assignment of queues to brokers: even, stable, and only with the knowledge of their holders."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

from txmsg.broker.cluster.assignment import Assignment, assigned
from txmsg.broker.store.leases import QueueRow
from txmsg.message import QueueId


def queues_of(**counts: int) -> list[QueueRow]:
    """Return queues 1, 2, 3, ...: so many of each broker; those of `nobody` are unowned."""
    owners = [broker for broker, count in counts.items() for _ in range(count)]
    return [QueueRow(QueueId(n), None if owner == "nobody" else owner, None) for n, owner in enumerate(owners, 1)]


def after(queues: Sequence[QueueRow], moves: Assignment) -> list[QueueRow]:
    """Return the queues after all handovers."""
    done = []
    for row in queues:
        wanted_by = moves.wanted.get(row.queue_id, row.wanted_by)
        done.append(QueueRow(row.queue_id, moves.given.get(row.queue_id) or wanted_by or row.broker_id, None))
    return done


def loads(queues: Sequence[QueueRow]) -> dict[str | None, int]:
    return dict(Counter(row.broker_id for row in queues))


def test_unowned_queues_are_spread_evenly_with_neighbours_apart() -> None:
    moves = assigned(queues_of(nobody=8), ["a", "b"])
    assert not moves.wanted
    assert moves.given == dict(zip(range(1, 9), ["a", "b"] * 4, strict=True))


def test_an_even_assignment_does_not_change() -> None:
    assert not assigned(queues_of(a=4, b=3, c=3), ["a", "b", "c"])


def test_a_new_broker_gets_its_share_and_nothing_else_moves() -> None:
    moves = assigned(queues_of(a=6, b=6), ["a", "b", "new"])
    assert not moves.given, "nothing is taken from a broker that lives"
    assert Counter(moves.wanted.values()) == {"new": 4}
    assert loads(after(queues_of(a=6, b=6), moves)) == {"a": 4, "b": 4, "new": 4}


def test_queues_of_a_dead_broker_are_reassigned_at_once_to_all_others() -> None:
    moves = assigned(queues_of(a=4, b=4, dead=4), ["a", "b"])
    assert Counter(moves.given.values()) == {"a": 2, "b": 2}
    assert set(moves.given) == {9, 10, 11, 12}
    assert not moves.wanted


def test_a_draining_broker_gets_no_queue_and_gives_up_all_its_queues() -> None:
    moves = assigned(queues_of(a=2, old=4, nobody=2), ["a", "b"], ["old"])
    assert set(moves.given) == {7, 8}
    assert set(moves.wanted) == {3, 4, 5, 6}
    assert "old" not in {*moves.given.values(), *moves.wanted.values()}
    assert loads(after(queues_of(a=2, old=4, nobody=2), moves)) == {"a": 4, "b": 4}


def test_without_an_active_broker_nothing_moves() -> None:
    assert not assigned(queues_of(old=4, nobody=2), [], ["old"])


def test_a_queue_already_moving_is_not_requested_again() -> None:
    queues = [
        QueueRow(QueueId(1), "a", None),
        QueueRow(QueueId(2), "a", "b"),
        QueueRow(QueueId(3), "a", None),
        QueueRow(QueueId(4), "a", "b"),
    ]
    assert not assigned(queues, ["a", "b"])


def test_a_queue_requested_by_a_dead_broker_stays_or_goes_to_another() -> None:
    queues = [QueueRow(QueueId(1), "a", None), QueueRow(QueueId(2), "a", "dead")]
    assert assigned(queues, ["a"]).wanted == {2: None}
    assert assigned(queues, ["a", "b"]).wanted == {2: "b"}


def test_assignment_is_even_with_the_fewest_moves_from_any_state() -> None:
    chance = random.Random(4)
    for _ in range(300):
        active = [f"b{n}" for n in range(chance.randint(1, 6))]
        others = [*active, "draining", "dead", None]
        queues = [QueueRow(QueueId(n), chance.choice(others), None) for n in range(1, chance.randint(2, 60))]
        moves = assigned(queues, active, ["draining"])
        counts = loads(after(queues, moves))
        assert set(counts) <= set(active)
        assert max(counts.values()) - min(counts.get(each, 0) for each in active) <= 1
        before = Counter(row.broker_id for row in queues if row.broker_id in active)
        least, more = divmod(len(queues), len(active))
        keep = sorted(before.values(), reverse=True) + [0] * (len(active) - len(before))
        fewest = sum(max(0, count - least - (place < more)) for place, count in enumerate(keep))
        moved = sum(row.broker_id in active and moves.wanted.get(row.queue_id) is not None for row in queues)
        assert moved == fewest
        assert not assigned(after(queues, moves), active, ["draining"]), "one assignment is enough"


def test_assignment_does_not_depend_on_the_order_of_brokers() -> None:
    queues = queues_of(a=5, dead=5, nobody=5)
    assert assigned(queues, ["a", "b", "c"]) == assigned(queues, ["c", "b", "a"])
