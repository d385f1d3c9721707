"""What holds for all tests of this folder."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.integration.batch_harness import Notify, notify
from txmsg.client.flows import flow, flow_async


@pytest.fixture(autouse=True)
def outcomes_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that waits for the reply to its outcome does so however busy the machine is.

    After 2 s it would be left to go on in the background, and tests count what is stored.
    """
    for module in (flow, flow_async):
        monkeypatch.setattr(module, "OUTCOME_WAIT_S", 60.0)


@pytest.fixture
async def db(notify_url: str) -> AsyncIterator[Notify]:
    """The database at notify_url as a broker's writer sees it."""
    async with notify(notify_url) as database:
        yield database
