"""Fixtures of all integration tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.integration.batch_harness import Notify, notify
from txmsg.client.flows import flow, flow_async


@pytest.fixture(autouse=True)
def outcomes_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let calls that wait for their outcome wait however long a busy machine takes.

    After 2 s the call would continue in the background, and tests count stored messages.
    """
    for module in (flow, flow_async):
        monkeypatch.setattr(module, "OUTCOME_WAIT_S", 60.0)


@pytest.fixture
async def db(notify_url: str) -> AsyncIterator[Notify]:
    """The database at notify_url as seen by a broker's writer."""
    async with notify(notify_url) as database:
        yield database
