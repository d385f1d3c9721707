"""Play histories on one server until the time is up or one violates the model; then shrink that one."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace

from tests.going_back import GoingBack, Server
from tests.model.broker import Broker, quick_reconnects
from tests.model.history import BROKERS, History, described, grows_topics, random_history
from tests.model.model import Defect, Violation
from tests.model.plant import Plant
from tests.model.play import Play
from tests.model.tables import Tables
from txmsg.checker.ports import DueHalf
from txmsg.message import TransactionState

STAGES = 4
"""Databases with two brokers each, on which histories are played at the same time: while one waits another goes on.
Even, so that topics grow on every other one and never on the rest."""
SHRINK_S_MAX = 40.0
ENOUGH_S_MAX = 300.0
_numbers = itertools.count(1)


@dataclass(slots=True)
class Found:
    """A shrunk history that violates the model, with its violations."""

    history: History
    violations: list[Violation]
    steps_before: int
    """Its number of steps as found."""

    def described(self) -> str:
        """Return a description for people."""
        history = self.history
        return "\n".join(
            (
                *(f"{violation.defect.value.upper()}: {violation.text}" for violation in self.violations),
                f"seed {history.seed}: {len(history.steps)} of {self.steps_before} steps are left, "
                f"{history.window} at a time, {history.queues} queues in each topic",
                *(described(step) for step in history.steps),
                "crowds named in them:",
                *(
                    f"  {crowd.number} ({crowd.kind.value}): "
                    + ", ".join(
                        f"{each.number} to topics {each.topics} {'commits' if each.commits else 'aborts'}"
                        for each in crowd.transactions
                    )
                    for crowd in history.crowds
                    if any(getattr(step, "crowd", None) == crowd.number for step in history.steps)
                ),
            )
        )


@dataclass(slots=True)
class Result:
    """Statistics of a run and what it found."""

    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    found: Found | None = None

    @property
    def clean(self) -> bool:
        return self.found is None and not self.counts["deadlocks"]


async def explore(
    server: Server,
    template: str,
    *,
    duration_s: float,
    seed: int,
    plant: Plant | None = None,
    shrink: bool = True,
    is_enough: Callable[[Result], bool] = lambda result: True,
    on_progress: Callable[[Result], None] = lambda result: None,
) -> Result:
    """Play histories `seed`, `seed` + 1, ... on copies of the database `template` until one violates the model.

    With a planted defect: wrong in its way. Goes on after duration_s until it is enough, for ENOUGH_S_MAX.
    """
    result = Result()
    begun = time.monotonic()

    def goes_on() -> bool:
        passed_s = time.monotonic() - begun
        return passed_s < duration_s or (passed_s < ENOUGH_S_MAX and not is_enough(result))

    async def play(stage: _Stage, seeds: Iterator[int]) -> None:
        while result.found is None and goes_on():
            history = random_history(next(seeds))
            violations = await stage.play(history)
            if result.found is None and (violations if plant is None else _show(plant.defect, violations)):
                result.found = Found(history, violations, len(history.steps))
            result.counts["histories"] += 1
            result.seconds = time.monotonic() - begun
            on_progress(result)

    with quick_reconnects(), _quiet(), plant.code() if plant is not None else nullcontext():
        async with AsyncExitStack() as stack:
            stages = [_Stage(server, template, plant, result.counts) for _ in range(STAGES)]
            for stage in stages:
                stack.push_async_callback(stage.close)
            await asyncio.gather(
                *(play(stage, itertools.count(seed + place, STAGES)) for place, stage in enumerate(stages))
            )
            if result.found is not None and shrink:
                stage = _Stage(server, template, plant, Counter())
                stack.push_async_callback(stage.close)
                defect = result.found.violations[0].defect if plant is None else plant.defect
                await _shrink(stage, result.found, defect)
    return result


def _show(defect: Defect, violations: list[Violation]) -> bool:
    return any(violation.defect is defect for violation in violations)


async def _shrink(stage: _Stage, found: Found, defect: Defect) -> None:
    """Remove steps while this defect still shows, within SHRINK_S_MAX. Races may hide it."""
    give_up_at = time.monotonic() + SHRINK_S_MAX

    async def shows(smaller: History) -> bool:
        for _ in range(2):
            violations = [each for each in await stage.play(smaller) if each.defect is defect]
            if violations:
                found.history, found.violations = smaller, violations
                return True
            if time.monotonic() > give_up_at:
                break
        return False

    await shows(replace(found.history, window=1))
    size = len(found.history.steps) // 2
    while size:
        start = 0
        while start < len(found.history.steps):
            steps = found.history.steps
            if time.monotonic() > give_up_at:
                return
            if not await shows(replace(found.history, steps=(*steps[:start], *steps[start + size :]))):
                start += size
        size //= 2


class _Stage:
    """A database with two brokers, replaced after a history that got stuck."""

    def __init__(self, server: Server, template: str, plant: Plant | None, counts: Counter[str]) -> None:
        self._server = server
        self._template = template
        self._plant = plant
        self._counts = counts
        self._name = ""
        self._brokers: list[Broker] = []
        self._tables: Tables | None = None
        self._past: GoingBack | None = None
        self._play: Play | None = None
        self._grew = False

    async def play(self, history: History) -> list[Violation]:
        if self._tables is None:
            await self._open()
        assert self._tables is not None
        assert self._past is not None
        self._play = Play(history, self._brokers, self._tables, self._past)
        violations = await self._play.play()
        self._counts.update(self._play.counts)
        self._grew = self._grew or grows_topics(history.seed)
        if _show(Defect.STUCK, violations):
            await self.close()  # something may still run there
        else:
            await self._tables.drop_closed_segments()
        return violations

    def _answer(self, half: DueHalf) -> TransactionState:
        return TransactionState.UNKNOWN if self._play is None else self._play.answer(half)

    async def _open(self) -> None:
        self._name = f"model_{os.getpid()}_{next(_numbers)}"
        url = await asyncio.to_thread(self._server.create_database, self._name, template=self._template)
        if self._plant is not None:
            await asyncio.to_thread(self._plant.install, url)
        self._tables = await Tables.open(url)
        self._grew = False
        self._brokers = [Broker(number, url, self._answer) for number in range(BROKERS)]
        self._past = GoingBack(self._server, url, [broker.proxy for broker in self._brokers])
        for broker in self._brokers:
            await broker.open()

    async def close(self) -> None:
        """Stop the brokers and drop the database. Idempotent."""
        if self._tables is None:
            return
        for broker in self._brokers:
            self._counts["cuts"] += broker.cuts
            await broker.close()
        deadlocks = await self._tables.deadlocks()
        self._counts["deadlocks where topics grew" if self._grew else "deadlocks"] += deadlocks
        await self._tables.close()
        self._tables = None
        await asyncio.to_thread(self._server.drop_database, self._name)
        if self._past is not None:
            await asyncio.to_thread(self._past.close)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence log lines of disturbances made on purpose."""
    loggers = [logging.getLogger(name) for name in ("txmsg", "psycopg")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
