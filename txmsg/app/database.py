"""The database of an application: its sessions, the listener that answers checks, and the tables of txmsg in it."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, Final, TypeAlias

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker
from sqlalchemy.orm import sessionmaker

from txmsg.checker.fence import FenceCheckListener
from txmsg.errors import MisuseError, shown
from txmsg.tables import create_tables

DatabaseChoice: TypeAlias = "Engine | AsyncEngine | sessionmaker[Any] | async_sessionmaker[Any]"

_MAKERS: Final = {Engine: sessionmaker, AsyncEngine: async_sessionmaker}


class Database:
    """What `Txmsg(database=...)` is given: an engine, or a sessionmaker that is bound to one.

    The tables are created at the first use in each process, if they are missing. Raises MisuseError for anything else.
    """

    def __init__(self, given: DatabaseChoice) -> None:
        is_maker = isinstance(given, sessionmaker | async_sessionmaker)
        engine = given.kw.get("bind") if isinstance(given, sessionmaker | async_sessionmaker) else given
        if not isinstance(engine, Engine | AsyncEngine):
            hint = ", whose bind is no engine" if is_maker else ""
            raise MisuseError(
                f"database={shown(given)}{hint}: give the Engine or AsyncEngine of the business database, or a "
                "sessionmaker or async_sessionmaker with bind=engine"
            )
        self.engine = engine
        self.is_async = isinstance(engine, AsyncEngine)
        """Whether functions that use it are `async def`."""
        self.session: Any = given if is_maker else _MAKERS[AsyncEngine if self.is_async else Engine](engine)
        """Opens a session."""
        self._has_tables = False

    def listener(self) -> FenceCheckListener:
        """A new one that answers checks from its fence."""
        return FenceCheckListener(self.engine)

    def ready_for(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, for which the tables are there when it is called."""
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def call_async(*args: Any, **kwargs: Any) -> Any:
                if not self._has_tables:
                    await self._create_async()
                return await function(*args, **kwargs)

            return call_async

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not self._has_tables:
                self._create()
            return function(*args, **kwargs)

        return call

    async def create_tables_by(self, threads: Executor) -> None:
        """Creates the missing tables, on a thread of these if the engine blocks."""
        if self._has_tables:
            return
        if self.is_async:
            await self._create_async()
        else:
            await asyncio.get_running_loop().run_in_executor(threads, self._create)

    def _create(self) -> None:
        assert isinstance(self.engine, Engine)
        create_tables(self.engine)
        self._has_tables = True

    async def _create_async(self) -> None:
        assert isinstance(self.engine, AsyncEngine)
        await create_tables(self.engine)
        self._has_tables = True
