"""Ordering keys in the in-flight window, on its own and under any interleaving. Nothing here waits."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.test_window import LARGE, expire, refuse, taken
from txmsg.broker.delivery.window import BEHIND, ROW_SIZE_BYTES, Failure, Memory, Window
from txmsg.broker.store.rows import Row
from txmsg.message import Offset
from txmsg.wire.tags import parse_tags


def keyed(start: int, *keys: str | None, tag: str | None = None) -> list[Row]:
    """Messages from offset `start`, one for each key."""
    return [Row(Offset(start + n), bytes(16), 0, None, tag, None, b"body", 0, 0, key) for n, key in enumerate(keys)]


def test_one_message_of_a_key_is_out_and_the_others_are_not_held_back() -> None:
    window = Window(0)
    window.put(keyed(0, "a", "a", None, "b", "a"))
    assert taken(window, 10) == [0, 2, 3]
    assert taken(window, 10, token=2) == []
    assert window.ack(1, [0, 3]) == []
    assert taken(window, 10, token=3) == [1]
    window.ack(3, [1])
    assert taken(window, 10, token=4) == [4]


def test_a_failing_message_takes_the_rest_of_its_key_along_as_retries() -> None:
    window = Window(0)
    window.put(keyed(0, "a", "b", "a"))
    taken(window, 10)
    refuse(window, Failure("boom"), 0)
    assert window.failing() == {0: Failure("boom"), 2: BEHIND}
    window.put(keyed(3, "a", "b"))
    assert taken(window, 10, token=2) == []
    window.ack(1, [1])
    assert taken(window, 10, token=3) == [4]
    assert window.keys_of(window.failing()) == {"a"}
    window.stored(window.failing())
    assert window.outstanding_count == 1
    assert window.progress()[:2] == (4, ())


def test_a_key_is_free_again_when_its_retries_are_gone() -> None:
    window = Window(0, blocked_keys=["a"])
    window.put(keyed(0, "a", "b"))
    assert taken(window, 10) == [1]
    assert window.failing() == {0: BEHIND}
    window.unblock(["a"])
    assert window.blocked_keys() == ["a"], "one is on its way to the table"
    window.stored([0])
    window.unblock(["a", "unknown"])
    window.put(keyed(2, "a"))
    assert taken(window, 10, token=2) == [2]


def test_a_retry_asked_for_by_a_person_waits_for_the_message_of_its_key_that_is_out() -> None:
    window = Window(5)
    window.put(keyed(5, "a", "a"))
    taken(window, 10)
    assert not window.block("a")
    assert window.failing() == {6: BEHIND}
    window.ack(1, [5])
    assert window.block("a")
    assert window.block("another")


def test_tags_nobody_wants_do_not_stop_their_key() -> None:
    window = Window(0)
    window.put([*keyed(0, "a", "a", tag="x"), *keyed(2, "a", tag="y")])
    mine = parse_tags("y")
    assert [row[0] for row in window.take(5, LARGE, token=1, deadline=9, mine=mine, group=mine)] == [2]
    assert window.progress().next_offset == 2


def test_what_waits_behind_a_key_counts_as_room_and_as_memory() -> None:
    memory = Memory(10 * (ROW_SIZE_BYTES + 4))
    window = Window(0, count_max=10, size_bytes_max=40, memory=memory)
    window.put(keyed(0, *["a"] * 10))
    assert (window.room_count(), window.room_bytes()) == (0, 0)
    assert memory.is_full
    taken(window, 10)
    assert not memory.is_full
    refuse(window, Failure("boom"), 0)
    assert memory.size_bytes == 0
    assert window.room_bytes() == 40


def test_a_closed_window_weighs_nothing() -> None:
    memory = Memory()
    window = Window(0, memory=memory)
    window.put(keyed(0, "a", "a", None))
    assert memory.size_bytes == 3 * (ROW_SIZE_BYTES + 4)
    window.close()
    window.put(keyed(3, None))
    assert memory.size_bytes == 0


def test_what_failed_during_a_pause_is_read_again_and_nothing_of_its_key_before_it() -> None:
    window = Window(0)
    window.put(keyed(0, "a", None, "a", None, None))
    assert taken(window, 4) == [0, 1, 3, 4]
    window.ack(1, [3])
    window.unread(window.take_back(1, [0, 1])[0])
    assert (window.has_unread, window.failing()) == (True, {})
    assert taken(window, 9, token=2) == [], "its key waits, too"
    window.rewind()
    assert window.position == 0
    window.put(keyed(0, "a", None, "a", None, None))
    assert taken(window, 9, token=3) == [0, 1], "4 is still out, 3 is done"
    assert window.ack(1, [4]) == []
    window.ack(3, [0, 1])
    assert taken(window, 9, token=4) == [2]
    window.ack(4, [2])
    assert window.progress()[:2] == (5, ())


def test_what_waited_here_before_the_first_unread_message_is_read_again_too() -> None:
    window = Window(0)
    window.put(keyed(0, "a", "a", "b", None))
    assert taken(window, 2) == [0, 2]
    window.unread(window.take_back(1, [2])[0])
    window.rewind()
    assert window.position == 1, "behind its key"
    window.put(keyed(1, "a", "b", None))
    assert taken(window, 9, token=2) == [2, 3]
    window.ack(1, [0])
    assert taken(window, 9, token=3) == [1]
    window = Window(0)
    window.put(keyed(0, None, None, tag="b"))
    window.put(keyed(2, None, tag="a"))
    window.take(1, LARGE, token=1, deadline=9, mine=parse_tags("a"), group=parse_tags("a || b"))
    window.unread(window.take_back(1, [2])[0])
    window.rewind()
    assert window.position == 0, "ready for another member"


def test_what_comes_back_while_it_is_read_again_is_not_lost() -> None:
    window = Window(0)
    window.put(keyed(0, "a", "b", "b"))
    taken(window, 9)
    window.unread(window.take_back(1, [0])[0])
    window.rewind()
    window.unread(window.take_back(1, [1])[0])
    assert not window.has_unread, "it is read anyway"
    window.put(keyed(0, "a", "b", "b"))
    assert taken(window, 9, token=2) == [0, 1]


def test_rows_acknowledged_while_they_were_read_are_left_out() -> None:
    window = Window(0)
    window.put(keyed(0, None, None, None))
    taken(window, 9)
    window.unread(window.take_back(1, [0])[0])
    window.rewind()
    window.put(keyed(0, None))
    window.ack(1, [1])
    assert window.position == 2
    window.put(keyed(1, None, None))
    assert (window.position, taken(window, 9, token=2)) == (3, [0])


KEYS = st.sampled_from(["a", "b", "c", None, None])


@dataclass
class World:
    """A queue, its window, and a table `retry` that does what the database would do."""

    keys: list[str | None]
    window: Window = field(init=False)
    out: dict[int, int] = field(default_factory=dict)
    retries: set[int] = field(default_factory=set)
    done: list[int] = field(default_factory=list)
    token: int = 0
    now: float = 0.0

    def __post_init__(self) -> None:
        self.window = Window(0, count_max=12)

    def read(self, count: int) -> None:
        start = self.window.position
        count = min(count, self.window.room_count(), len(self.keys) - start)
        self.window.put(keyed(start, *self.keys[start : start + max(count, 0)]))

    def take(self, count: int) -> None:
        self.token += 1
        for offset in taken(self.window, count, token=self.token, deadline=self.now + 5):
            assert offset not in self.out
            assert offset not in self.done
            self.out[offset] = self.token
        keys = [self.keys[offset] for offset in self.out if self.keys[offset]]
        assert len(keys) == len(set(keys)), f"two messages of a key are out: {self.out}"

    def settle(self, n: int, how: str) -> None:
        if not self.out:
            return
        offset = sorted(self.out)[n % len(self.out)]
        token = self.out.pop(offset)
        if how == "ack":
            assert self.window.ack(token, [offset]) == []
            self.done.append(offset)
        elif how == "fail":
            assert refuse(self.window, Failure("no"), offset, token=token) == []
        else:
            back, late = self.window.take_back(token, [offset])
            assert late == []
            self.window.unread(back)

    def expire(self) -> None:
        self.now += 3
        expire(self.window, self.now)
        self.out = {offset: token for offset, token in self.out.items() if offset not in self.window.failing()}

    def write(self) -> None:
        """The failures are stored; of each key the first retry is processed, and free keys are released."""
        failing = self.window.failing()
        keys = self.window.keys_of(failing)
        self.retries |= failing.keys()
        self.window.stored(failing)
        self.process(keys)

    def process(self, keys: set[str]) -> None:
        heads: dict[str | None, int] = {}
        for offset in sorted(self.retries):
            heads.setdefault(self.keys[offset] or str(offset), offset)
        for offset in heads.values():
            self.retries.discard(offset)
            self.done.append(offset)
        left = {self.keys[offset] for offset in self.retries}
        held = set(self.window.blocked_keys()) | keys
        self.window.unblock(key for key in held if key not in left)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("read"), st.integers(1, 8)),
        st.tuples(st.just("take"), st.integers(1, 6)),
        st.tuples(st.just("ack"), st.integers(0, 20)),
        st.tuples(st.just("fail"), st.integers(0, 20)),
        st.tuples(st.just("unread"), st.integers(0, 20)),
        st.tuples(st.just("rewind"), st.just(0)),
        st.tuples(st.just("expire"), st.just(0)),
        st.tuples(st.just("write"), st.just(0)),
    ),
    max_size=120,
)


@settings(max_examples=300)
@given(keys=st.lists(KEYS, min_size=1, max_size=40), steps=STEPS)
def test_any_interleaving_keeps_each_key_in_order_and_loses_nothing(
    keys: list[str | None], steps: list[tuple[str, int]]
) -> None:
    world = World(keys)
    for step, n in steps:
        run(world, step, n)
        assert world.window.outstanding_count <= 12
    for _ in range(4 * len(keys) + 4):  # to the end, in good order
        for step in ("rewind", "read", "take", "ack", "ack", "write"):
            run(world, step, 8)
    assert sorted(world.done) == list(range(len(keys))), "each message is done once"
    assert world.window.progress()[:2] == (len(keys), ())
    order: dict[str, list[int]] = defaultdict(list)
    for offset in world.done:
        if (key := keys[offset]) is not None:
            order[key].append(offset)
    assert all(offsets == sorted(offsets) for offsets in order.values()), order


def run(world: World, step: str, n: int) -> None:
    match step:
        case "read":
            world.read(n)
        case "take":
            world.take(n)
        case "ack" | "fail" | "unread":
            world.settle(n, step)
        case "rewind":
            world.window.rewind()
        case "expire":
            world.expire()
        case "write":
            world.write()
        case _:
            pytest.fail(step)


@settings(max_examples=100)
@given(keys=st.lists(KEYS, min_size=1, max_size=12))
def test_messages_of_other_keys_are_never_held_back(keys: list[str | None]) -> None:
    """While one key fails, everything else that fits the window can be taken, without any answer for that key."""
    world = World(["x", *keys])
    world.window = Window(0)
    world.read(len(world.keys))
    world.take(1)
    assert list(world.out) == [0]
    world.settle(0, "fail")
    world.out.clear()
    for _ in keys:
        world.take(20)
        while world.out:
            world.settle(0, "ack")
    assert sorted(world.done) == list(range(1, len(world.keys)))
