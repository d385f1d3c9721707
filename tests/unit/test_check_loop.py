"""The check loop against a store in memory, with a clock moved only by the test."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

import pytest

from tests.unit.check_loop_world import (
    COMMIT,
    DAY_S,
    EPOCH,
    ROLLBACK,
    UNKNOWN,
    World,
    always,
    never,
    until,
)
from txmsg.checker.loop import CheckLoopConfig
from txmsg.checker.policy import CheckPolicies, CheckPolicy, ParkReason
from txmsg.checker.ports import DueHalf
from txmsg.errors import BrokerUnavailable, MisuseError, OutcomeConflict
from txmsg.message import TransactionState

# ---- answers


async def test_commit_and_rollback_answers_are_applied() -> None:
    world = World(always(COMMIT))
    first = world.store.add()
    assert await world.once() == 1
    world.clients.answer = always(ROLLBACK)
    second = world.store.add()
    assert await world.once() == 1
    assert (world.outcomes.commits, world.outcomes.rollbacks) == ([first], [second])
    assert (world.loop.counts.committed, world.loop.counts.rolled_back, world.loop.in_flight) == (1, 1, 0)


async def test_an_unknown_half_is_checked_again_after_the_interval_and_not_before() -> None:
    world = World(always(UNKNOWN))
    world.store.add()
    assert await world.once() == 1
    world.clock.advance(29)
    assert await world.once() == 0
    world.clock.advance(1)
    assert await world.once() == 1
    assert [half.checks for half in world.clients.asked] == [1, 2]


async def test_a_half_is_parked_after_checks_max_unknown_answers_and_not_checked_again() -> None:
    world = World(always(UNKNOWN), CheckPolicies(default=CheckPolicy(checks_max=3)))
    half = world.store.add()
    for _ in range(5):
        await world.once()
        world.clock.advance(30)
    assert len(world.clients.asked) == 3
    assert world.store.rows[half].parked is ParkReason.CHECKS_USED_UP
    assert world.loop.counts.parked == 1


async def test_a_half_whose_last_check_was_lost_with_its_broker_is_parked_unchecked() -> None:
    world = World(always(COMMIT), CheckPolicies(default=CheckPolicy(checks_max=3)))
    half = world.store.add()
    world.store.rows[half].checks = 3
    assert await world.once() == 0
    assert world.store.rows[half].parked is ParkReason.CHECKS_USED_UP


async def test_a_client_that_raises_counts_as_unknown() -> None:
    async def fails(half: DueHalf) -> TransactionState:
        raise RuntimeError("listener broke")

    world = World(fails)
    half = world.store.add()
    await world.once()
    assert world.loop.counts.unknown == 1
    assert world.store.rows[half].checks == 1


async def test_a_client_that_disconnects_counts_as_unknown() -> None:
    async def leaves(half: DueHalf) -> TransactionState:
        raise asyncio.CancelledError

    world = World(leaves)
    world.store.add()
    await world.once()
    assert (world.loop.counts.unknown, world.loop.in_flight) == (1, 0)


async def test_a_transaction_decided_during_its_check_needs_no_answer() -> None:
    async def nothing(half: DueHalf) -> TransactionState | None:
        return None

    world = World(nothing)
    world.store.add()
    assert await world.once() == 1
    counts = world.loop.counts
    assert (counts.committed, counts.rolled_back, counts.unknown, world.loop.in_flight) == (0, 0, 0, 0)
    assert (world.outcomes.commits, world.outcomes.rollbacks) == ([], [])


@pytest.mark.parametrize("nonsense", [True, "commit", 1])
async def test_an_invalid_answer_counts_as_unknown(nonsense: object) -> None:
    async def answers(half: DueHalf) -> TransactionState:
        return nonsense  # type: ignore[return-value]

    world = World(answers)
    world.store.add()
    await world.once()
    assert (world.loop.counts.unknown, world.outcomes.commits) == (1, [])


async def test_a_client_that_hangs_counts_as_unknown_after_the_timeout() -> None:
    world = World(never)
    world.store.add()

    once = asyncio.create_task(world.loop.run_once())
    await world.clock.until_slept_on(10)
    world.clock.advance(9.9)
    await asyncio.sleep(0)
    assert not once.done()
    world.clock.advance(0.1)
    await once
    assert (world.loop.counts.unknown, world.loop.in_flight) == (1, 0)


async def test_a_hanging_client_does_not_delay_checks_of_others() -> None:
    async def answer(half: DueHalf) -> TransactionState:
        return await never(half) if half.group == "stuck" else COMMIT

    world = World(answer)
    world.clients.pairs = [("stuck", None), ("users", None)]
    world.store.add(group="stuck")
    world.store.add()

    run = asyncio.create_task(world.loop.run())
    await until(lambda: len(world.outcomes.commits) == 1)
    world.store.add()
    world.loop.wake()
    await until(lambda: len(world.outcomes.commits) == 2)
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)


@pytest.mark.parametrize("error", [OutcomeConflict("other outcome"), BrokerUnavailable("away"), ValueError("a bug")])
async def test_an_outcome_that_cannot_be_stored_leaves_the_half_for_the_next_check(error: Exception) -> None:
    world = World(always(COMMIT))
    half = world.store.add()
    world.outcomes.error = error
    assert await world.once() == 1
    assert half in world.store.rows
    assert (world.loop.counts.committed, world.loop.in_flight) == (0, 0)
    world.outcomes.error = None
    world.clock.advance(30)
    await world.once()
    assert world.outcomes.commits == [half]


# ---- clients that are checked


async def test_only_halves_of_attached_groups_and_fences_are_claimed() -> None:
    fence, other_fence = uuid4(), uuid4()
    world = World(always(COMMIT))
    world.clients.pairs = [("users", fence), ("orders", None)]
    mine = world.store.add(fence_id=fence)
    world.store.add(fence_id=other_fence)
    world.store.add()
    world.store.add(group="elsewhere")
    unfenced = world.store.add(group="orders")
    assert await world.once() == 2
    assert set(world.outcomes.commits) == {mine, unfenced}


async def test_the_claim_carries_the_interval_of_each_group() -> None:
    world = World(always(UNKNOWN), CheckPolicies(by_group={"orders": CheckPolicy(interval_s=100)}))
    world.clients.pairs = [("users", None), ("orders", None)]
    users, orders = world.store.add(), world.store.add(group="orders")
    await world.once()
    assert world.store.rows[users].next_check_at == EPOCH + timedelta(seconds=30)
    assert world.store.rows[orders].next_check_at == EPOCH + timedelta(seconds=100)


async def test_halves_of_a_late_client_are_found_at_once_behind_the_window() -> None:
    world = World(always(COMMIT))
    await world.once()
    world.store.add(group="orders")
    world.clock.advance(30)
    assert await world.once() == 0
    world.clients.pairs = [*world.clients.pairs, ("orders", None)]
    assert await world.once() == 1


# ---- the window and the sweep


async def test_the_window_moves_forward_and_a_sweep_runs_every_minute_and_at_start() -> None:
    world = World(always(COMMIT))
    for _ in range(5):
        await world.once()
        world.clock.advance(20)
    at = [None if since is None else (since - EPOCH).total_seconds() for since in world.store.since]
    assert at == [None, -2, 18, None, 58]


async def test_a_half_that_became_visible_after_its_due_time_is_found_by_the_sweep() -> None:
    world = World(always(COMMIT))
    world.clock.advance(100)
    await world.once()
    late = world.store.add(due_in_s=-50)
    world.clock.advance(20)
    assert await world.once() == 0
    world.clock.advance(40)
    assert await world.once() == 1
    assert world.outcomes.commits == [late]


async def test_wake_with_sweep_finds_all_due_halves() -> None:
    world = World(always(COMMIT))
    await world.once()
    world.loop.wake(sweep=True)
    await world.once()
    assert world.store.since == [None, None]


async def test_more_due_halves_than_the_in_flight_limit_are_found_in_steps() -> None:
    world = World(always(COMMIT), config=CheckLoopConfig(in_flight_max=4))
    due = [world.store.add(due_in_s=-n) for n in range(10)]
    begun = [await world.once() for _ in range(4)]
    assert begun == [4, 4, 2, 0]
    assert sorted(world.outcomes.commits) == sorted(due)


async def test_a_backlog_in_the_window_is_found_in_steps() -> None:
    world = World(always(COMMIT), config=CheckLoopConfig(in_flight_max=4))
    await world.once()
    for _ in range(10):
        world.clock.advance(1)
        world.store.add()
    assert [await world.once() for _ in range(4)] == [4, 4, 2, 0]
    assert None not in world.store.since[1:]


async def test_checks_in_flight_never_exceed_the_limit() -> None:
    release = asyncio.Event()
    in_flight: list[int] = []

    async def answer(half: DueHalf) -> TransactionState:
        in_flight.append(world.loop.in_flight)
        await release.wait()
        return COMMIT

    world = World(answer, config=CheckLoopConfig(in_flight_max=4))
    for _ in range(10):
        world.store.add()

    run = asyncio.create_task(world.loop.run())
    await until(lambda: len(world.clients.asked) == 4)
    for _ in range(50):
        await asyncio.sleep(0)
    assert len(world.clients.asked) == 4
    release.set()
    await until(lambda: len(world.outcomes.commits) == 10)
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)
    assert max(in_flight) == 4


# ---- no client to check


async def test_a_half_without_any_client_for_a_day_is_parked() -> None:
    world = World(always(COMMIT))
    world.clients.pairs = []
    half = world.store.add()
    world.clock.advance(DAY_S)
    await world.once()
    assert world.store.rows[half].parked is None
    world.clock.advance(60)
    await world.once()
    assert world.store.rows[half].parked is ParkReason.NO_CLIENT


async def test_a_group_has_its_own_parking_time_without_a_client() -> None:
    world = World(always(COMMIT), CheckPolicies(by_group={"orders": CheckPolicy(no_client_park_s=3600)}))
    world.clients.pairs = []
    users, orders = world.store.add(), world.store.add(group="orders")
    world.clock.advance(3601)
    await world.once()
    assert world.store.rows[users].parked is None
    assert world.store.rows[orders].parked is ParkReason.NO_CLIENT


async def test_after_a_start_nothing_is_parked_until_clients_had_time_to_attach() -> None:
    world = World(always(COMMIT))
    world.clients.pairs = []
    half = world.store.add(due_in_s=-2 * DAY_S)
    await world.once()
    world.clock.advance(599)
    await world.once()
    assert world.store.rows[half].parked is None
    world.clock.advance(1)
    await world.once()
    assert world.store.rows[half].parked is ParkReason.NO_CLIENT


async def test_thousands_of_abandoned_halves_are_parked_in_one_run() -> None:
    world = World(always(COMMIT))
    world.clients.pairs = []
    for _ in range(2500):
        world.store.add(due_in_s=-2 * DAY_S)
    world.clock.advance(600)
    await world.once()
    assert world.loop.counts.parked == 2500


# ---- the loop around the step


async def test_the_loop_slows_down_while_the_store_fails_and_recovers() -> None:
    world = World(always(COMMIT), config=CheckLoopConfig(retry_delay_max_s=3))
    world.store.broken = 4
    world.store.add()

    run = asyncio.create_task(world.loop.run())
    for delay_s in (1, 2, 3, 3):
        await world.clock.until_slept_on(delay_s)
        world.clock.advance(delay_s)
    await until(lambda: len(world.outcomes.commits) == 1)
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)
    assert world.store.since == [None]


async def test_cancelling_the_loop_cancels_its_checks() -> None:
    world = World(never)
    world.store.add()

    before = asyncio.all_tasks()
    run = asyncio.create_task(world.loop.run())
    await until(lambda: len(world.clients.asked) == 1)
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)
    await until(lambda: asyncio.all_tasks() == before)
    assert world.loop.in_flight == 0


@pytest.mark.parametrize(
    ("field", "value"), [("in_flight_max", 0), ("poll_interval_s", 0), ("poll_interval_s", 31), ("sweep_interval_s", 0)]
)
def test_an_invalid_config_is_refused_with_the_field_name(field: str, value: float) -> None:
    with pytest.raises(MisuseError, match=field):
        replace(CheckLoopConfig(), **{field: value})  # type: ignore[arg-type]
