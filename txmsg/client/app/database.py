"""The database of an application: its sessions, the listener that answers checks, and txmsg's tables in it."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeAlias

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker
from sqlalchemy.orm import sessionmaker

from txmsg.checker.fence import FenceCheckListener
from txmsg.checker.tables import create_tables
from txmsg.errors import MisuseError, shown

DatabaseChoice: TypeAlias = "Engine | AsyncEngine | sessionmaker[Any] | async_sessionmaker[Any]"


class BusinessDatabase:
    """The business database of an application, by its engine or by a sessionmaker that is bound to one.

    The tables are created at the first use in each process, if they are missing. Raises MisuseError for anything else.
    """

    def __init__(self, given: DatabaseChoice) -> None:
        self.session: Any = given
        """Opens a session."""
        engine: Any = None
        match given:
            case Engine():
                engine, self.session = given, sessionmaker(given)
            case AsyncEngine():
                engine, self.session = given, async_sessionmaker(given)
            case sessionmaker() | async_sessionmaker():
                engine = given.kw.get("bind")
        if not isinstance(engine, Engine | AsyncEngine):
            raise MisuseError(
                f"database={shown(given)} has no engine: give the Engine or AsyncEngine of the business database, or a "
                "sessionmaker or async_sessionmaker with bind=engine"
            )
        self.engine: Engine | AsyncEngine = engine
        self.is_async = isinstance(engine, AsyncEngine)
        """True if functions that use it are `async def`."""
        self.session_class: type = self.session.class_
        """The class of its sessions."""
        self._has_tables = False

    def listener(self) -> FenceCheckListener:
        """Return a new listener that answers checks from its fence."""
        return FenceCheckListener(self.engine)

    def ready_for(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that creates the missing tables, then calls `function`."""
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def call_async(*args: Any, **kwargs: Any) -> Any:
                await self.create_tables_async()
                return await function(*args, **kwargs)

            return call_async

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            self.create_tables()
            return function(*args, **kwargs)

        return call

    async def create_tables_by(self, threads: Executor) -> None:
        """Create the missing tables, on one of these threads if the engine blocks."""
        if self.is_async:
            await self.create_tables_async()
        elif not self._has_tables:
            await asyncio.get_running_loop().run_in_executor(threads, self.create_tables)

    def create_tables(self) -> None:
        """Create the missing tables, unless this process has done so before. For an Engine."""
        if not self._has_tables:
            assert isinstance(self.engine, Engine)
            create_tables(self.engine)
            self._has_tables = True

    async def create_tables_async(self) -> None:
        """Create the missing tables, unless this process has done so before. For an AsyncEngine."""
        if not self._has_tables:
            assert isinstance(self.engine, AsyncEngine)
            await create_tables(self.engine)
            self._has_tables = True
