"""Outer transactions around functions decorated without session=."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from tests.broker_process import BrokerProcess
from tests.errors_page import is_documented
from tests.integration.client_harness import WAIT_S, counts
from txmsg.client import AsyncProducer, Producer, transactional_message
from txmsg.errors import MisuseError
from txmsg.message import ReceivedMessage, TransactionState


class Unsure:
    """A listener that answers UNKNOWN."""

    def check(self, message: ReceivedMessage) -> TransactionState:
        return TransactionState.UNKNOWN


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{tmp_path}/one.db")
    yield engine
    engine.dispose()


DJANGO = """
import sys
import django
from django.conf import settings
from django.db import transaction
from txmsg import MisuseError, Producer, TransactionState, transactional_message

class Unsure:
    def check(self, message):
        return TransactionState.UNKNOWN

with Producer(sys.argv[1], group="p", check_listener=Unsure()) as producer:
    @transactional_message(producer, topic="t")
    def place(order):
        if settings.configured:
            with transaction.atomic():
                print(order)

    place(0)  # Django is there, and not in use
    settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}})
    django.setup()
    place(1)
    with transaction.atomic():
        try:
            place(2)
        except MisuseError as exc:
            print(exc)
    place(3)
"""


def test_a_surrounding_django_transaction_is_refused(broker: BrokerProcess, notify_url: str) -> None:
    """It runs in its own process: Django can be configured only once."""
    command = [sys.executable, "-c", DJANGO, broker.address]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert ended.returncode == 0, ended.stderr
    first, refusal, last = ended.stdout.splitlines()
    assert (first, last) == ("1", "3")
    assert "place() without session= is called inside transaction.atomic() of Django's database 'default'" in refusal
    assert is_documented(MisuseError(refusal))
    assert counts(notify_url) == (0, 3)


def test_a_session_with_a_transaction_of_the_caller_is_refused(
    broker: BrokerProcess, engine: Engine, notify_url: str
) -> None:
    with Producer(broker.address, group="p", timeout_s=WAIT_S, check_listener=Unsure()) as producer:

        @transactional_message(producer, topic="t", message=lambda session: b"")
        def place(session: Session) -> None:
            session.commit()

        with Session(engine) as session:
            place(session)
            session.connection()  # begun by itself, as by a query: the function commits it
            place(session)
            with session.begin(), pytest.raises(MisuseError, match="the session that it is given"):
                place(session)
    assert counts(notify_url) == (0, 2)


async def test_an_async_session_with_a_transaction_of_the_caller_is_refused(
    broker: BrokerProcess, engine: Engine, notify_url: str
) -> None:
    async_engine = create_async_engine(engine.url.set(drivername="sqlite+aiosqlite"))
    async with AsyncProducer(broker.address, group="p", timeout_s=WAIT_S, check_listener=Unsure()) as producer:

        @transactional_message(producer, topic="t", message=lambda session: b"")
        async def place(session: AsyncSession) -> None:
            await session.commit()

        async with AsyncSession(async_engine) as session, session.begin():
            with pytest.raises(MisuseError, match="the session that it is given"):
                await place(session=session)
    await async_engine.dispose()
    assert counts(notify_url) == (0, 0)
