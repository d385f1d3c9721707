"""Names that rotation gives."""

from __future__ import annotations

import pytest

from txmsg.metaq.agent.names import bases_of


@pytest.mark.parametrize(
    "name",
    ["app.log.1", "app.log-20261123", "app.log.2026-11-23", "app.log.old", "app-20261123.log", "app-2026-11-23.log"],
)
def test_rotated_file_names_are_recognised(name: str) -> None:
    assert "app.log" in bases_of(name)


@pytest.mark.parametrize(
    "name", ["app.log", "app-1.log", "app.1.log", "app.log.1.gz", "app.log.json", "myapp.log", "app.log1"]
)
def test_other_file_names_are_not_taken_for_rotated_ones(name: str) -> None:
    assert "app.log" not in bases_of(name)
