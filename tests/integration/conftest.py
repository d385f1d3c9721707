"""What holds for all tests of this folder."""

from __future__ import annotations

import pytest

from txmsg.client import flow, flow_async


@pytest.fixture(autouse=True)
def outcomes_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call returns when its outcome is stored, however busy the machine is, and tests count what is stored then.

    After 2 s it would be left to go on in the background.
    """
    for module in (flow, flow_async):
        monkeypatch.setattr(module, "OUTCOME_WAIT_S", 60.0)
