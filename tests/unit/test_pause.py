"""Pauses of delivery to a group: their start, their members, and their end. Time is an argument."""

from __future__ import annotations

import math

import pytest

from txmsg.broker.delivery.members import Members, Pause
from txmsg.broker.delivery.state import FairQueue
from txmsg.wire.access.rate import TokenBucket
from txmsg.wire.tags import ALL_TAGS

T = {"t": ALL_TAGS}


def members_of(*names: str, failures_max: int = 3) -> Members:
    members = Members("g", Pause(failures_max))
    for name in names:
        members.join(name, T, 0, 600)
    return members


def test_consecutive_failures_start_a_pause_and_a_success_prevents_it() -> None:
    pause = Pause(3)
    assert not pause.failed(2, "boom", 0)
    assert not pause.succeeded(0)
    assert not pause.failed(2, "boom", 0)
    assert pause.room(0) == math.inf
    assert pause.failed(1, "worse", 5)
    assert (pause.since, pause.last_error, pause.room(5.9), pause.room(6)) == (5, "worse", 0, 1)


def test_probes_are_delivered_one_at_a_time_at_growing_intervals_until_one_succeeds() -> None:
    pause, now = Pause(1), 0.0
    pause.failed(1, "boom", now)
    waited: list[float] = []
    for token in range(8):
        waited.append(pause.opens_at(now) - now)
        now = pause.opens_at(now)
        assert pause.room(now) == 1
        pause.given(token, now, 60)
        assert pause.room(now + 59) == 0, "one is out"
        assert pause.is_probe(token)
        pause.failed(1, "boom", now, token=token)
    assert waited == [1, 2, 4, 8, 16, 30, 30, 30]
    assert pause.succeeded(now)
    assert (pause.is_on, pause.room(now)) == (False, math.inf)


def test_an_unanswered_probe_is_abandoned_after_its_visibility_timeout() -> None:
    pause = Pause(1)
    pause.failed(1, "boom", 0)
    pause.given(7, 1, 60)
    assert (pause.room(60.9), pause.room(61)) == (0, 1)


def test_a_probe_of_a_departed_member_is_replaced_after_the_backoff() -> None:
    pause = Pause(1)
    pause.failed(1, "boom", 0)
    pause.given(7, 1, 60, "gone")
    pause.left("another")
    assert pause.opens_at(1.5) == 61
    for _ in range(2):  # it may have had two connections
        pause.left("gone")
        assert pause.opens_at(1.5) == 2, "as after a failed one"
    pause.given(8, 2, 60, "c")
    pause.left("c")
    assert pause.opens_at(2) == 4, "members that die of their messages are probed less and less"
    pause.given(9, 50, 60, "d")
    pause.left("d")
    assert pause.opens_at(60) == 54
    pause.succeeded(60)
    pause.left("d")
    assert pause.room(60) == math.inf


def test_failures_of_messages_delivered_before_a_pause_do_not_delay_its_probe() -> None:
    pause = Pause(1)
    pause.failed(1, "boom", 0, token=1)
    for late in range(10):
        pause.failed(1, "boom", late / 10, token=2)
    assert pause.room(1) == 1


def test_an_unstable_backend_is_probed_less_and_less_often() -> None:
    pause = Pause(1)
    pause.failed(1, "boom", 0)
    pause.given(1, 1, 60)
    pause.failed(1, "boom", 1, token=1)
    pause.succeeded(3)
    pause.failed(1, "boom", 4)
    assert pause.opens_at(4) == 6, "as before the success"
    pause.succeeded(6)
    pause.failed(1, "boom", 600)
    assert pause.opens_at(600) == 601


def test_a_failing_member_is_paused_alone_while_others_succeed() -> None:
    members = members_of("good", "bad")
    members.succeeded("good", 0)
    for _ in range(5):
        assert not members.failed("bad", 1, "boom", token=1, now=1)
    assert not members.pause.is_on
    assert (members.room("good", 1), members.room("bad", 1), members.room("bad", 2)) == (math.inf, 0, 1)
    assert members.blocked_s("bad", 1) == 1
    assert members.blocked_s("good", 1) == 0


def test_members_of_a_stopped_group_get_nothing_at_any_rate() -> None:
    members = members_of("a")
    members.limit(10, 0, stopped=True)
    assert (members.room("a", 1), members.blocked_s("a", 1)) == (0, math.inf)
    members.limit(10, 1)
    assert (members.room("a", 2), members.blocked_s("a", 2)) == (5, 0)


def test_the_group_pauses_when_all_members_fail_and_resumes_at_one_success() -> None:
    members = members_of("a", "b")
    members.succeeded("a", 0)
    members.succeeded("b", 0)
    failed = [members.failed(name, 1, "boom", token=1, now=1) for name in ("a", "a", "b", "b")]
    assert failed == [False, False, True, True]
    assert members.room("a", 1) == members.room("b", 1) == 0
    members.given("a", 1, token=9, now=2, visibility_timeout_s=60)
    assert members.room("b", 2) == 0, "one probe for all"
    assert not members.failed("a", 1, "boom", token=9, now=2), "a failed probe counts as any failure"
    assert members.succeeded("b", 3)
    assert members.room("a", 3) == members.room("b", 3) == math.inf


def test_an_old_success_does_not_prevent_a_pause() -> None:
    members = members_of("gone", "bad")
    members.succeeded("gone", 0)
    assert [members.failed("bad", 3, "boom", token=1, now=now) for now in (59, 61)] == [False, True]


def test_a_rate_applies_to_all_members_together() -> None:
    members = members_of("a", "b")
    members.limit(10.0, 0)
    assert members.room("a", 0) == 5
    members.given("a", 5, token=1, now=0, visibility_timeout_s=60)
    assert members.room("b", 0) == 0
    assert members.blocked_s("b", 0) == pytest.approx(0.1)
    assert members.room("b", 0.1) == 1
    members.limit(None, 1)
    assert members.room("b", 1) == math.inf


def test_a_bucket_allows_its_rate_and_saves_at_most_its_burst() -> None:
    bucket, now, through = TokenBucket(100.0, 0), 0.0, 0
    assert bucket.room(1000) == 50
    bucket.take_tokens(50)
    while now < 10:
        room = bucket.room(1000 + now)
        bucket.take_tokens(room)
        through += room
        now += 0.01
    assert 990 <= through <= 1001


def test_tokens_returned_to_a_bucket_do_not_exceed_its_burst() -> None:
    bucket = TokenBucket(10.0, 0)
    bucket.take_tokens(3)
    bucket.take_tokens(-2)
    assert bucket.room(0) == 4
    bucket.take_tokens(-2)
    assert bucket.room(0) == 5


def test_a_bucket_in_debt_waits_until_it_is_refilled() -> None:
    bucket = TokenBucket(10.0, 0)
    bucket.take_tokens(25)
    assert bucket.room(2) == 0
    assert bucket.wait_s(2) == pytest.approx(0.1)
    assert bucket.room(2.1) == 1


def test_a_bucket_with_a_rate_below_one_allows_single_messages() -> None:
    bucket = TokenBucket(0.1, 0)
    assert bucket.room(0) == 1
    bucket.take_tokens(1)
    assert (bucket.room(9.9), bucket.room(10.1)) == (0, 1)


def test_owners_are_served_in_turn_regardless_of_their_load() -> None:
    turns: FairQueue[str] = FairQueue()
    for n in range(1000):
        turns.put("many", f"m{n}")
    turns.put("few", "f0")
    turns.put("few", "f1")
    assert [turns.pop() for _ in range(5)] == ["m0", "f0", "m1", "f1", "m2"]
    assert len(turns) == 997
    for _ in range(997):
        turns.pop()
    with pytest.raises(IndexError):
        turns.pop()


def test_pause_failures_can_change_for_a_group_and_its_members() -> None:
    members = members_of("a", "b", failures_max=100)
    members.pause_after(2, 1000)
    members.failed("a", 2, "boom", token=1, now=0)
    members.failed("b", 2, "boom", token=2, now=0)
    assert members.pause.is_on


def test_a_waiting_member_is_present_regardless_of_its_last_request() -> None:
    now = 0.0
    members = Members("g")
    wants = {"t": ALL_TAGS}
    for client_id in ("waits", "asked"):
        members.join(client_id, wants, now, 600.0)
    with members.waits("waits", lambda: now):
        now = 3600.0
        assert members.present(now) == [("waits", 0.0)]
        members.join("new", wants, now, 600.0)
        assert [client_id for client_id, _ in members.present(now)] == ["new", "waits"]
        assert members.is_used(now, 1.0)
    now += 59.0
    assert ("waits", 59.0) in members.present(now)
    now += 2.0
    assert members.present(now) == []
    assert members.asked_for(now) == set()


def test_a_detached_member_is_absent_until_it_attaches_or_polls_again() -> None:
    members, wants = Members("g"), {"t": ALL_TAGS}
    members.join("a", wants, 0.0, 600.0)
    members.attached("a", is_there=False)
    assert members.present(1.0) == []
    assert members.is_used(1.0, 600.0)
    members.attached("a", is_there=True)
    assert members.present(2.0) == [("a", 2.0)]
    members.attached("a", is_there=False)
    members.join("a", wants, 3.0, 600.0)
    assert members.present(3.0) == [("a", 0.0)]
    members.attached("a", is_there=False)
    with members.waits("a", lambda: 4.0):
        assert members.present(4.0) == [("a", 0.0)]
