"""The order of ordering keys under any interleaving of consumers, failures, pauses and broker deaths."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.test_window import LARGE, expire
from tests.unit.test_window_keys import keyed
from txmsg.broker.delivery.offsets import Visibility
from txmsg.broker.delivery.window import BEHIND, DeliveryFailure, InFlightWindow, QueueFetch

COUNT_MAX = 12
_FAILED = DeliveryFailure("no")
_DEAD = DeliveryFailure("never", is_final=True)


@dataclass
class World:
    """A queue, its window, and a table `retry` that acts as the database would."""

    keys: list[str | None]
    window: InFlightWindow = field(init=False)
    out: dict[int, int] = field(default_factory=dict)
    """Messages held by consumers: the token of each offset."""
    retries: set[int] = field(default_factory=set)
    seen: list[int] = field(default_factory=list)
    """The first retry of each key, as read from the table a moment ago."""
    done: set[int] = field(default_factory=set)
    token: int = 0
    now: float = 0.0

    def __post_init__(self) -> None:
        self.window = InFlightWindow(0, count_max=COUNT_MAX)

    def read(self, count: int) -> None:
        start = self.window.position
        count = min(count, self.window.room_count(), len(self.keys) - start)
        self.window.put_rows(keyed(start, *self.keys[start : start + max(count, 0)]))

    def take(self, count: int, *, in_runs: bool) -> None:
        self.token += 1
        taken = self.window.take_rows(
            QueueFetch(count, LARGE, in_runs=in_runs), Visibility(token=self.token, deadline=self.now + 5)
        )
        assert len(taken) <= count
        for row in taken:
            self.check(row.offset)
            self.out[row.offset] = self.token
        keys = [key for row in taken if (key := row.ordering_key)]
        assert in_runs or len(keys) == len(set(keys)), f"several messages of a key at once: {taken}"
        if in_runs and len(taken) < count:
            elsewhere = {*self.out, *self.done, *self.retries, *self.window.failing()}
            left = [n for n in range(self.window.position) if self.keys[n] in keys and n not in elsewhere]
            blocked = self.window.blocked_keys()
            assert all(self.keys[n] in blocked for n in left), f"{left} do not come along with {taken}"

    def check(self, offset: int) -> None:
        """Check that it may be delivered now: it is nowhere else, and all before it of its key is done, or with that
        consumer.
        """
        assert offset not in self.out
        assert offset not in self.done
        if (key := self.keys[offset]) is not None:
            for earlier in (n for n in range(offset) if self.keys[n] == key and n not in self.done):
                assert self.out.get(earlier) == self.token, f"{offset} comes before {earlier}"
            others = [n for n, token in self.out.items() if self.keys[n] == key and token != self.token]
            assert not others, f"{offset} comes while {others} are with another consumer"

    def check_followers(self, blocked: Collection[str], followers: Collection[int]) -> None:
        """Check that a key is blocked while its messages are in the table or on the way there, and that followers
        follow a failure.

        blocked, followers: before the step.
        """
        failing = self.window.failing()
        reasons = {self.keys[n] for n in (*failing, *self.retries)}
        assert reasons.issuperset(self.window.blocked_keys()), f"blocked for no reason: {self.window.blocked_keys()}"
        failed = {self.keys[n] for n in (*self.retries, *(n for n, why in failing.items() if why is not BEHIND))}
        new = [n for n in self.followers() if n not in followers]
        assert all(self.keys[n] in failed or self.keys[n] in blocked for n in new), f"{new} follow no failure"

    def followers(self) -> set[int]:
        return {n for n, why in self.window.failing().items() if why is BEHIND}

    def settle(self, n: int, how: str) -> None:
        if not self.out:
            return
        offset = sorted(self.out)[n % len(self.out)]
        token = self.out.pop(offset)
        if how == "ack":
            assert self.window.ack(token, [offset]) == []
            self.done.add(offset)
            return
        back, late = self.window.take_back(token, [offset])
        assert (back, late) == ([offset], [])
        if how == "unread":
            self.window.unread(back)
        else:
            self.window.fail(back, _FAILED if how == "fail" else _DEAD)

    def renew(self, n: int) -> None:
        if self.out:
            offset, token = sorted(self.out.items())[n % len(self.out)]
            assert self.window.renew(token, [offset], self.now + 1 + n, is_exact=True) == []

    def expire(self) -> None:
        self.now += 3
        expire(self.window, self.now)
        self.out = {n: token for n, token in self.out.items() if not self.window.renew(token, [n], 0)}

    def put_back(self, n: int) -> None:
        """Lose a whole reply."""
        if self.out:
            token = sorted(set(self.out.values()))[n % len(set(self.out.values()))]
            back, late = self.window.take_back(token, [each for each, given in self.out.items() if given == token])
            assert late == []
            self.out = {each: given for each, given in self.out.items() if given != token}
            self.window.unread(back)

    def write(self) -> None:
        """Store the failures; final ones become dead letters. Keys without stored messages are unblocked."""
        failing = self.window.failing()
        keys = self.window.keys_of(failing)
        dead = {offset for offset, failure in failing.items() if failure.is_final}
        self.done |= dead
        self.retries |= failing.keys() - dead
        self.window.stored(failing)
        self.free(keys)

    def look(self) -> None:
        """Read the first retry of each key, which `retry` delivers later."""
        heads: dict[str | None, int] = {}
        for offset in sorted(self.retries):
            heads.setdefault(self.keys[offset] or str(offset), offset)
        self.seen = list(heads.values())

    def retry(self) -> None:
        """Deliver and process messages read before, unless their key is busy."""
        self.token += 1
        for offset in self.seen:
            if (key := self.keys[offset]) is None or self.window.block(key):
                self.check(offset)
                self.retries.discard(offset)
                self.done.add(offset)
        self.seen = []
        self.free({key for key in self.keys if key})

    def free(self, keys: set[str]) -> None:
        left = {self.keys[offset] for offset in self.retries}
        self.window.unblock(key for key in {*self.window.blocked_keys(), *keys} if key not in left)

    def crash(self) -> None:
        """Let another broker begin with the written state, when all visibility timeouts are over."""
        next_offset, acked, _ = self.window.progress()
        blocked = {key for offset in self.retries if (key := self.keys[offset])}
        self.window = InFlightWindow(next_offset, acked, count_max=COUNT_MAX, blocked_keys=blocked)
        self.out.clear()
        self.seen = []


KEYS = st.sampled_from(["a", "a", "b", "c", None])
STEPS = [
    *("read", "read", "take", "run", "run", "ack", "ack", "ack", "fail", "fail", "bury", "unread", "unread", "renew"),
    *("put_back", "rewind", "rewind", "expire", "write", "write", "look", "look", "retry", "retry", "crash"),
]


@settings(max_examples=400)
@given(seed=st.integers(0, 1 << 32))
def test_any_interleaving_keeps_each_key_in_order_and_loses_nothing(seed: int) -> None:
    play_to_the_end(seed)


def play_to_the_end(seed: int) -> None:
    """Play a history of a queue, the same for the same seed. AssertionError if a message is lost or comes too early."""
    random_ = random.Random(seed)
    keys = random_.choices(["a", "b", None], (6, 2, 1), k=random_.randint(4, 24))
    world = World(keys)
    for step in random_.choices(STEPS, k=120):
        play(world, step, random_.randint(1, 8))
        assert world.window.outstanding_count <= COUNT_MAX
    rounds = 0
    while len(world.done) < len(keys):  # to a clean end
        rounds += 1
        assert rounds < 4 * len(keys) + 4, f"stuck: {world}"
        for step in ("rewind", "read", "run", "ack", "ack", "ack", "write", "look", "retry"):
            play(world, step, 8)
    world.write()
    assert not world.retries
    assert world.window.progress()[:2] == (len(keys), ())


def play(world: World, step: str, n: int) -> None:
    blocked, followers = world.window.blocked_keys(), world.followers()
    _play(world, step, n)
    world.check_followers(blocked, followers)


def _play(world: World, step: str, n: int) -> None:
    match step:
        case "read":
            world.read(n)
        case "take" | "run":
            world.take(n, in_runs=step == "run")
        case "ack" | "fail" | "bury" | "unread":
            world.settle(n, step)
        case "renew":
            world.renew(n)
        case "put_back":
            world.put_back(n)
        case "rewind":
            world.window.rewind()
        case "expire":
            world.expire()
        case "write":
            world.write()
        case "look":
            world.look()
        case "retry":
            world.retry()
        case "crash":
            world.crash()
        case _:
            pytest.fail(step)


@settings(max_examples=100)
@given(keys=st.lists(KEYS, min_size=1, max_size=12))
def test_messages_of_other_keys_are_never_delayed(keys: list[str | None]) -> None:
    """While one key fails, all other messages that fit the window can be taken without any answer for that key."""
    world = World(["x", *keys])
    world.window = InFlightWindow(0)
    world.read(len(world.keys))
    world.take(1, in_runs=False)
    assert list(world.out) == [0]
    world.settle(0, "fail")
    for _ in keys:
        world.take(20, in_runs=False)
        while world.out:
            world.settle(0, "ack")
    assert world.done == set(range(1, len(world.keys)))
