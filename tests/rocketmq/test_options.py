"""Options of `txmsg rocketmq`, as far as they need no broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.cli_harness import txmsg


def test_a_token_file_that_cannot_be_read_is_named_before_anything_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TXMSG_TOKEN_FILE", "")  # which the option sets for the process
    missing = tmp_path / "missing.token"
    assert "missing.token" in txmsg("rocketmq", "--token-file", str(missing), "--listen", "127.0.0.1:0", status=1)
