"""Random misbehaving user functions and their business databases.

A program is a list of steps that are run on a Session. It writes markers: rows that are there if and only if their
message is. A step may fail, and what fails may be caught: the interpreter is a user who catches everything and goes on.
The same programs run on an AsyncSession, by `run_sync`, on the driver of asyncio.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, event, insert, select, text, update
from sqlalchemy.orm import Session

_metadata = MetaData()
markers = Table("markers", _metadata, Column("name", String(80), primary_key=True), mysql_engine="InnoDB")
junk = Table("junk", _metadata, Column("id", Integer, primary_key=True), mysql_engine="InnoDB")
held = Table("held", _metadata, Column("id", Integer, primary_key=True), Column("n", Integer), mysql_engine="InnoDB")

_WAIT_S = 60.0
_HEAVY = 200  # rows: the session with fewer of them is the victim of a deadlock


class Do(StrEnum):
    """The action of a step."""

    MARK = "mark"
    READ = "read"
    DUPLICATE = "insert a duplicate"
    PENDING_DUPLICATE = "leave a duplicate to a flush"
    NONSENSE = "send nonsense"
    SQL = "send sql"
    SAVEPOINT = "savepoint of the session"
    CORE_SAVEPOINT = "savepoint of the connection"
    RAW_SAVEPOINT = "savepoint as sql"
    ROLLBACK = "session.rollback()"
    COMMIT = "session.commit()"
    CLOSE = "session.close()"
    CORE_COMMIT = "connection.commit()"
    CORE_ROLLBACK = "connection.rollback()"
    SECOND = "write on a second connection"
    NOWAIT = "lock nowait"
    DEADLOCK = "deadlock"
    DRIVER_NONSENSE = "send nonsense past SQLAlchemy"
    LISTENER = "listen to before_commit and swallow an error there"
    CANCEL = "cancel"
    RAISE = "raise"
    FINALLY = "raise in finally"


@dataclass(frozen=True, slots=True)
class Step:
    """A single action. catch: the exceptions that are swallowed."""

    do: Do
    sql: str = ""
    inner: tuple[Step, ...] = ()
    roll_back: bool = False
    """True if the exception of a savepoint is raised at its end."""
    catch: type[BaseException] | None = None


@dataclass(frozen=True, slots=True)
class Program:
    """A sequence of steps. name: unique; its markers begin with it."""

    name: str
    steps: tuple[Step, ...]


class Oops(Exception):
    """An exception of the program itself."""


@dataclass(slots=True)
class Business:
    """The business database of a program. engine: a blocking one, for second connections."""

    engine: Engine
    program: Program
    marked: Callable[[str], object]
    """Called with each marker after it was written."""
    cancel: Callable[[], object] | None = None
    """Cancels the running task."""
    count: int = field(default=0)


def prepare(engine: Engine) -> None:
    """Create the tables and the rows that conflict with steps."""
    _metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(insert(junk), [{"id": 1}])
        connection.execute(insert(held), [{"id": 1, "n": 0}, {"id": 2, "n": 0}, {"id": 3, "n": 0}])


# ---- random programs


def programs(seed: int, count: int, url_name: str, *, savepoints_mark: bool, cancels: bool) -> list[Program]:
    """Return so many random programs, and at the end a correct one, which commits.

    savepoints_mark: whether a marker may be in a savepoint; its message must be, too, then.
    """
    chance = random.Random(f"{seed}/{url_name}/{savepoints_mark}")
    maker = _Maker(chance, url_name, savepoints_mark=savepoints_mark, cancels=cancels)
    made = [maker.steps(depth=0) for _ in range(count)]
    return [Program(f"{seed}-{url_name}-{number}", steps) for number, steps in enumerate([*made, (Step(Do.MARK),)])]


class _Maker:
    def __init__(self, chance: random.Random, url_name: str, *, savepoints_mark: bool, cancels: bool) -> None:
        self._chance = chance
        self._savepoints_mark = savepoints_mark
        sql = ["ROLLBACK", "/* done */ COMMIT", "-- oh\nrollback", "END" if url_name != "mysql" else "rollback work"]
        harm = [Do.DUPLICATE, Do.DUPLICATE, Do.PENDING_DUPLICATE, Do.NONSENSE, Do.SQL, Do.SQL, Do.SQL, Do.ROLLBACK]
        harm += [Do.COMMIT, Do.CLOSE, Do.CORE_COMMIT, Do.CORE_ROLLBACK, Do.SECOND, Do.LISTENER, Do.RAISE, Do.FINALLY]
        match url_name.partition("-")[0]:
            case "postgresql":
                harm += [Do.NOWAIT, Do.NOWAIT]
                sql += ["ABORT", "select 1; ROLLBACK", "begin", "select $$;$$"]
                if "asyncpg" not in url_name:  # which reports no error
                    harm += [Do.DRIVER_NONSENSE, Do.DRIVER_NONSENSE]
            case "mysql":
                harm += [Do.NOWAIT, Do.DEADLOCK, Do.DEADLOCK, Do.DEADLOCK]
                sql += ["start transaction", "/*!50000 COMMIT */", "create table made (id int)", "set autocommit = 1"]
                sql += ["truncate table made", "create temporary table if not exists made_too (id int)"]
            case _:
                sql += ["insert or rollback into junk values (1)"] * 6 + ["insert or fail into junk values (1)"]
                sql += ["with one as (select 99) insert or ignore into junk select * from one"]
        self._harm = harm + [Do.CANCEL] * (3 if cancels else 0)
        self._sql = sql

    def steps(self, *, depth: int) -> tuple[Step, ...]:
        made = [self._step(depth) for _ in range(self._chance.randint(0, 3))]
        if depth == 0 or self._savepoints_mark:
            made.insert(self._chance.randint(0, len(made)), self._caught(Step(Do.MARK)))
        return tuple(made)

    def _step(self, depth: int) -> Step:
        kind = self._chance.random()
        if kind < 0.15:
            return Step(Do.READ)
        if kind < 0.45 and depth < 3:
            do = self._chance.choice([Do.SAVEPOINT, Do.SAVEPOINT, Do.CORE_SAVEPOINT, Do.RAW_SAVEPOINT])
            inner = self.steps(depth=depth + 1)
            return self._caught(Step(do, inner=inner, roll_back=self._chance.random() < 0.4))
        do = self._chance.choice(self._harm)
        return self._caught(Step(do, sql=self._chance.choice(self._sql) if do is Do.SQL else ""))

    def _caught(self, step: Step) -> Step:
        catch = self._chance.choice([None, Exception, Exception, BaseException])
        return Step(step.do, step.sql, step.inner, step.roll_back, catch)


# ---- execution


def run(session: Session, business: Business) -> None:
    """Run a program, as the user function."""
    _run_all(session, business, business.program.steps)


def _run_all(session: Session, business: Business, steps: tuple[Step, ...]) -> None:
    for step in steps:
        if step.catch is None:
            _run(session, business, step)
        else:
            with contextlib.suppress(step.catch):
                _run(session, business, step)


def _run(session: Session, business: Business, step: Step) -> None:  # noqa: PLR0912, PLR0915 - one case each
    match step.do:
        case Do.MARK:
            business.count += 1
            name = f"{business.program.name}.{business.count}"
            session.execute(insert(markers).values(name=name))
            business.marked(name)
        case Do.READ:
            session.execute(select(junk)).all()
        case Do.DUPLICATE:
            session.execute(insert(junk).values(id=1))
        case Do.PENDING_DUPLICATE:
            event.listen(session, "before_flush", lambda *_: session.execute(insert(junk).values(id=1)), once=True)
            session.flush()
        case Do.NONSENSE:
            session.execute(text("select nonsense from nowhere"))
        case Do.SQL:
            session.execute(text(step.sql))
        case Do.SAVEPOINT:
            with session.begin_nested() as savepoint:
                _run_all(session, business, step.inner)
                if step.roll_back:
                    savepoint.rollback()
        case Do.CORE_SAVEPOINT:
            with session.connection().begin_nested() as nested:
                _run_all(session, business, step.inner)
                if step.roll_back:
                    nested.rollback()
        case Do.RAW_SAVEPOINT:
            _raw_savepoint(session, business, step)
        case Do.ROLLBACK:
            session.rollback()
        case Do.COMMIT:
            session.commit()
        case Do.CLOSE:
            session.close()
        case Do.CORE_COMMIT:
            session.connection().commit()
        case Do.CORE_ROLLBACK:
            session.connection().rollback()
        case Do.SECOND:
            with business.engine.begin() as connection:
                connection.execute(update(held).where(held.c.id == 3).values(n=held.c.n + 1))
        case Do.NOWAIT:
            with business.engine.begin() as other:
                other.execute(select(held).where(held.c.id == 1).with_for_update())
                session.execute(select(held).where(held.c.id == 1).with_for_update(nowait=True))
        case Do.DEADLOCK:
            _deadlock(session, business.engine)
        case Do.DRIVER_NONSENSE:
            session.connection().connection.cursor().execute("select nonsense from nowhere")
        case Do.LISTENER:

            def swallow(_: Session) -> None:
                with contextlib.suppress(Exception):
                    session.execute(insert(junk).values(id=1))

            event.listen(session, "before_commit", swallow, once=True)
        case Do.CANCEL:
            assert business.cancel is not None
            business.cancel()
            session.execute(select(junk)).all()
        case Do.RAISE:
            raise Oops
        case Do.FINALLY:
            try:
                session.execute(text("select nonsense from nowhere"))
            finally:
                raise Oops


def _raw_savepoint(session: Session, business: Business, step: Step) -> None:
    session.execute(text("savepoint mine"))
    try:
        _run_all(session, business, step.inner)
    except Exception:
        session.execute(text("rollback to savepoint mine"))
        raise
    session.execute(text("rollback to savepoint mine" if step.roll_back else "release savepoint mine"))


def _deadlock(session: Session, engine: Engine) -> None:
    """Cause a deadlock, which InnoDB ends by rolling back this transaction: it has written less."""
    has_second = threading.Event()

    def other() -> None:
        with engine.connect() as connection:
            connection.execute(insert(junk), [{"id": 1000 + number} for number in range(_HEAVY)])
            connection.execute(update(held).where(held.c.id == 2).values(n=1))
            has_second.set()
            connection.execute(update(held).where(held.c.id == 1).values(n=1))
            connection.rollback()

    session.execute(update(held).where(held.c.id == 1).values(n=1))
    thread = threading.Thread(target=other)
    thread.start()
    try:
        assert has_second.wait(_WAIT_S)
        session.execute(update(held).where(held.c.id == 2).values(n=1))
    finally:
        if not session.connection().in_transaction():
            session.rollback()
        thread.join(_WAIT_S)
