"""The business database of a service and its engines with one connection each."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from tests.business import POOL_OF_ONE
from tests.integration.chain.databases import KINDS, BusinessDatabase


@pytest.fixture(params=KINDS)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> BusinessDatabase:
    return BusinessDatabase(request.param, request, tmp_path)


@pytest.fixture
async def async_engine(database: BusinessDatabase) -> AsyncIterator[AsyncEngine]:
    made = create_async_engine(database.async_url, **POOL_OF_ONE)
    yield made
    await made.dispose()
