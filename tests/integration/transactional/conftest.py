"""The business database of these tests, and a producer with its fence."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session, sessionmaker

from tests.broker_process import BrokerProcess
from tests.business import awkward_sessions, business_database
from tests.integration.client_harness import WAIT_S
from tests.integration.transactional.users import Base
from txmsg.checker.fence import FenceCheckListener
from txmsg.client import Producer


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    with business_database(database_url, Base.metadata) as engine:
        yield engine


@pytest.fixture
def sessions(engine: Engine) -> sessionmaker[Session]:
    return awkward_sessions(engine, Base)


@pytest.fixture
def producer(broker: BrokerProcess, engine: Engine) -> Iterator[Producer]:
    with Producer(
        broker.address, group="user-service", timeout_s=WAIT_S, check_listener=FenceCheckListener(engine)
    ) as producer:
        yield producer
