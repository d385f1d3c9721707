"""The activity page of the lottery. Its only task is a row in `entries`; a message has a ticket printed later.

Thousands of people enter in the same seconds. Who enters waits for this database and for the broker, and not for the
tickets: those are printed at the pace of the printers (printing.py). Entering twice is entering once, so whoever gets
no answer tries again. If this process dies at any point, the FenceCheckListener of another one says, from the database
itself, who has entered.

`python -m examples.lottery.activity` makes the tables; `uvicorn examples.lottery.activity:app` serves the page.
Configured by the environment: ACTIVITY_DATABASE_URL (SQLAlchemy, for asyncio) and TXMSG_BROKERS.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from uuid import UUID, uuid4

from sqlalchemy import func
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

import txmsg
from txmsg import AsyncProducer, FenceCheckListener, transactional_message
from txmsg.errors import TxmsgError

engine = create_async_engine(os.environ["ACTIVITY_DATABASE_URL"], pool_size=12, max_overflow=0, pool_timeout=60)
SessionLocal = async_sessionmaker(engine)
producer = AsyncProducer(group="activity", check_listener=FenceCheckListener(engine))


class Base(DeclarativeBase):
    pass


class Entry(Base):
    __tablename__ = "entries"

    entry_id: Mapped[UUID] = mapped_column(primary_key=True)
    user_id: Mapped[int] = mapped_column(unique=True)
    entered_at: Mapped[datetime] = mapped_column(server_default=func.now())


class RulesNotAccepted(Exception):
    """Raised by the business logic. The row written so far is rolled back, and no ticket is printed."""


@transactional_message(producer, topic="lottery.entered", key="user_id", session=SessionLocal)
async def enter(session: AsyncSession, entry_id: UUID, user_id: int, accepts_rules: bool) -> None:
    """Enter a user: call `await enter(entry_id, user_id, accepts_rules)`. Raises IntegrityError if already entered."""
    session.add(Entry(entry_id=entry_id, user_id=user_id))
    await session.flush()
    if not accepts_rules:
        raise RulesNotAccepted("accept the rules to enter")


# ---- the page


async def show(_: Request) -> Response:
    return FileResponse(Path(__file__).parent / "web" / "activity.html")


async def take(request: Request) -> Response:
    """Handle a request. 201: entered; 200: entered before; 422: rules not accepted; 503: unknown, try again."""
    wish = await request.json()
    try:
        await enter(uuid4(), int(wish["user_id"]), wish["accepts_rules"] is True)
    except IntegrityError:
        return JSONResponse({"entered": True})
    except RulesNotAccepted as exc:
        return JSONResponse({"error": str(exc)}, 422)
    except TxmsgError as exc:
        return JSONResponse({"error": str(exc)}, 503, {"Retry-After": "1"})
    return JSONResponse({"entered": True}, 201)


@asynccontextmanager
async def lifespan(_: Starlette) -> AsyncIterator[None]:
    async with producer:  # so that it answers for transactions that an earlier process left undecided
        yield
    await engine.dispose()


app = Starlette(routes=[Route("/", show), Route("/enter", take, methods=["POST"])], lifespan=lifespan)


async def create_tables() -> None:
    """Create the page's own table, and those of the fence, which belong to this database, too."""
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    await txmsg.create_tables(engine)
    await engine.dispose()


if __name__ == "__main__":
    asyncio.run(create_tables())
