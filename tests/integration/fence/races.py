"""Business transactions race against checks at random moments, repeatedly; then the results are compared.

A race is one transaction id. Its business transaction writes the fence row and a row of users, and then commits, rolls
back, loses its connection, is cancelled, or is never begun; two checks ask meanwhile, on other connections. The seed
decides all that does not depend on time.
"""

from __future__ import annotations

import asyncio
import gc
import random
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from enum import StrEnum

import asyncpg
import pymysql
from sqlalchemy import Engine, create_engine, insert, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from tests.integration.fence.business import COMMIT, CONNECTION_ID, LEVELS, ROLLBACK, UNKNOWN, kill, users
from txmsg.checker.fence import AsyncFence, Fence
from txmsg.checker.tables import create_tables
from txmsg.errors import TransactionRefused
from txmsg.message import TransactionId, TransactionState, new_transaction_id

_AT_ONCE = 8  # races
_SETTLED_S_MAX = 60.0
# Raw ones: from setting the level of a connection that was killed, and from a commit on one that is being terminated.
_ERRORS = (SQLAlchemyError, pymysql.err.Error, asyncpg.InternalClientError)


class PlannedEnd(StrEnum):
    """The planned end of the business transaction."""

    COMMIT = "commit"
    COMMIT_AFTER_SAVEPOINT = "commit after a savepoint rolled back"
    ROLL_BACK = "roll back"
    KILLED = "commit while killed"
    CANCELLED = "commit while cancelled"
    ABSENT = "absent"


class KnownEnd(StrEnum):
    """The outcome known to the business transaction."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    REFUSED = "refused"
    FAILED = "failed before commit"
    IN_DOUBT = "failed in commit"


@dataclass(slots=True, kw_only=True)
class Race:
    """The plan of a race and its results."""

    id: TransactionId
    ending: PlannedEnd
    level: str | None
    fence_first: bool
    begins_after_s: float
    works_for_s: float
    blow_after_s: float
    check_after_s: tuple[float, float]
    said: KnownEnd = KnownEnd.ROLLED_BACK
    answers: list[TransactionState] = field(default_factory=list)
    final: TransactionState = UNKNOWN
    effect: bool = False

    def problem(self) -> str | None:
        """Return the violation in this race, if any."""
        known = {KnownEnd.COMMITTED: COMMIT, KnownEnd.IN_DOUBT: self.final}.get(self.said, ROLLBACK)
        if (self.final is COMMIT) != self.effect:
            return f"the fence says {self.final.name}, its effect is {'' if self.effect else 'not '}there: {self}"
        if self.final is not known:
            return f"the fence says {self.final.name}, the transaction knows {self.said}: {self}"
        if not set(self.answers) <= {UNKNOWN, self.final}:
            return f"a check was answered otherwise than in the end: {self}"
        return None


def problems(races: Sequence[Race]) -> list[str]:
    return [problem for race in races if (problem := race.problem())]


def report(races: Sequence[Race]) -> str:
    """Return the number of races of each kind."""
    ends = Counter(f"{race.ending} -> {race.said} -> {race.final.name}" for race in races)
    answers = Counter(answer.name for race in races for answer in race.answers)
    lines = [f"  {count:6} {name}" for name, count in sorted(ends.items())]
    return "\n".join([*lines, f"  answers: {dict(sorted(answers.items()))}"])


def _plan(seed: int, count: int, dialect_name: str, *, cancels: bool) -> list[Race]:
    chance = random.Random(f"{seed}/{dialect_name}/{cancels}")
    is_server = dialect_name in CONNECTION_ID
    long_work_s = 1.5 if dialect_name in ("mariadb", "mysql") else 0.5  # longer than a check waits
    weights = {
        PlannedEnd.COMMIT: 45,
        PlannedEnd.COMMIT_AFTER_SAVEPOINT: 10,
        PlannedEnd.ROLL_BACK: 15,
        PlannedEnd.KILLED: 20 if is_server else 0,
        PlannedEnd.CANCELLED: 20 if cancels else 0,
        PlannedEnd.ABSENT: 5,
    }

    def one(number: int) -> Race:
        is_long = number % 20 == 0
        return Race(
            id=new_transaction_id(),
            ending=chance.choices(list(weights), list(weights.values()))[0],
            level=chance.choice(LEVELS) if is_server else None,
            fence_first=chance.random() < 0.7,
            begins_after_s=chance.uniform(0, 0.01),
            works_for_s=long_work_s if is_long else chance.choice((0, chance.uniform(0, 0.01))),
            blow_after_s=chance.uniform(0, 0.01),
            check_after_s=(chance.uniform(0, 0.02), chance.uniform(0, 0.05))
            if not is_long
            else (chance.uniform(0, 0.2), chance.uniform(0.1, 0.2)),
        )

    return [one(number) for number in range(count)]


def _said_by(error: BaseException, *, committing: bool) -> KnownEnd:
    if isinstance(error, TransactionRefused):
        return KnownEnd.REFUSED
    return KnownEnd.IN_DOUBT if committing else KnownEnd.FAILED


# ---- threads


def run_sync(url: str, count: int, seed: int) -> list[Race]:
    """Run the races in threads and settle each."""
    business, checks = (create_engine(url, pool_size=_AT_ONCE * 3, pool_timeout=60) for _ in range(2))
    fence = Fence(checks)
    create_tables(business)
    races = _plan(seed, count, business.dialect.name, cancels=False)
    with ThreadPoolExecutor(_AT_ONCE * 3) as pool, ThreadPoolExecutor(2) as killers:
        futures = []
        for race in races:
            futures.append(pool.submit(_transact, business, fence, race, killers))
            futures += [pool.submit(_check, fence, race, after_s) for after_s in race.check_after_s]
        wait(futures)
        for future in futures:
            future.result()
    for race in races:
        race.final = _settle(fence, race.id)
    _look_for_effects(checks, races)
    business.dispose()
    checks.dispose()
    return races


def _check(fence: Fence, race: Race, after_s: float) -> None:
    time.sleep(after_s)
    race.answers.append(fence.check(race.id))


def _transact(engine: Engine, fence: Fence, race: Race, killers: ThreadPoolExecutor) -> None:
    if race.ending is PlannedEnd.ABSENT:
        return
    time.sleep(race.begins_after_s)
    committing = False
    bind = engine.execution_options(isolation_level=race.level) if race.level else engine
    try:
        with Session(bind) as session:
            if race.fence_first:
                fence.write(session, race.id)
            _write_effect(session, race)
            if not race.fence_first:
                fence.write(session, race.id)
            if race.ending is PlannedEnd.KILLED:
                connection_id = session.scalar(CONNECTION_ID[engine.dialect.name])
                killers.submit(_kill, engine, connection_id, race.blow_after_s)
            time.sleep(race.works_for_s)
            if race.ending is PlannedEnd.ROLL_BACK:
                session.rollback()
                return
            committing = True
            session.commit()
            race.said = KnownEnd.COMMITTED
    except (*_ERRORS, TransactionRefused) as exc:
        if race.said is not KnownEnd.COMMITTED:
            race.said = _said_by(exc, committing=committing)


def _write_effect(session: Session, race: Race) -> None:
    session.execute(insert(users).values(email=str(race.id)))
    if race.ending is PlannedEnd.COMMIT_AFTER_SAVEPOINT:
        with session.begin_nested() as savepoint:
            session.execute(insert(users).values(email="savepoint"))
            savepoint.rollback()


def _kill(engine: Engine, connection_id: int, after_s: float) -> None:
    time.sleep(after_s)
    kill(engine, connection_id)


def _settle(fence: Fence, transaction_id: TransactionId) -> TransactionState:
    deadline_s = time.monotonic() + _SETTLED_S_MAX
    while (state := fence.check(transaction_id)) is UNKNOWN:
        assert time.monotonic() < deadline_s, f"{transaction_id} is running for ever"
        gc.collect()  # a connection that was cancelled in the middle may be open until then, with its locks
    return state


def _look_for_effects(engine: Engine, races: Sequence[Race]) -> None:
    with engine.connect() as connection:
        effects = Counter(connection.execute(select(users.c.email)).scalars())
    for race in races:
        race.effect = str(race.id) in effects
    assert effects.total() == sum(race.effect for race in races), "effects that no transaction has, or twice"


# ---- asyncio


async def run_async(url: str, checks_url: str, count: int, seed: int) -> list[Race]:
    """Run the races as tasks with the asyncio driver of `url`; kill and settle by the blocking one of `checks_url`."""
    business, checks = (create_async_engine(url, pool_size=_AT_ONCE * 3, pool_timeout=60) for _ in range(2))
    blocking = create_engine(checks_url)
    fence = AsyncFence(checks)
    await create_tables(checks)
    races = _plan(seed, count, blocking.dialect.name, cancels=True)
    places = asyncio.Semaphore(_AT_ONCE)

    async def run(race: Race) -> None:
        async with places, asyncio.TaskGroup() as group:
            for after_s in race.check_after_s:
                group.create_task(_check_async(fence, race, after_s))
            transaction = group.create_task(_transact_async(business, fence, race, group, blocking))
            if race.ending is PlannedEnd.CANCELLED:
                await asyncio.sleep(race.begins_after_s + race.works_for_s + race.blow_after_s)
                transaction.cancel()

    async with asyncio.TaskGroup() as group:
        for race in races:
            group.create_task(run(race))
    await business.dispose()
    await checks.dispose()
    for race in races:
        race.final = await asyncio.to_thread(_settle, Fence(blocking), race.id)
    _look_for_effects(blocking, races)
    blocking.dispose()
    return races


async def _check_async(fence: AsyncFence, race: Race, after_s: float) -> None:
    await asyncio.sleep(after_s)
    race.answers.append(await fence.check(race.id))


async def _transact_async(
    engine: AsyncEngine, fence: AsyncFence, race: Race, group: asyncio.TaskGroup, blocking: Engine
) -> None:
    if race.ending is PlannedEnd.ABSENT:
        return
    committing = False
    bind = engine.execution_options(isolation_level=race.level) if race.level else engine
    try:
        await asyncio.sleep(race.begins_after_s)
        async with AsyncSession(bind) as session:
            if race.fence_first:
                await fence.write(session, race.id)
            await session.run_sync(_write_effect, race)
            if not race.fence_first:
                await fence.write(session, race.id)
            if race.ending is PlannedEnd.KILLED:
                connection_id = await session.scalar(CONNECTION_ID[blocking.dialect.name])
                group.create_task(asyncio.to_thread(_kill, blocking, connection_id, race.blow_after_s))
            await asyncio.sleep(race.works_for_s)
            if race.ending is PlannedEnd.ROLL_BACK:
                await session.rollback()
                return
            committing = True
            await session.commit()
            race.said = KnownEnd.COMMITTED
    except (*_ERRORS, TransactionRefused, asyncio.CancelledError) as exc:
        if race.said is not KnownEnd.COMMITTED:
            race.said = _said_by(exc, committing=committing)
