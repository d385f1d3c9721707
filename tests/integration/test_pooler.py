"""A pooler that changes the server session between transactions is detected and refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from tests import pgbouncer
from tests.conftest import StartBroker
from tests.mirror.tailer_process import TailerProcess
from txmsg.broker import migrate
from txmsg.errors import StorageError
from txmsg.ops.cli.main import main
from txmsg.runtime.child import ChildFailed

pytestmark = pytest.mark.skipif(not pgbouncer.is_installed(), reason=pgbouncer.HOW_TO_INSTALL)

_END_S_MAX = 60.0
_POOLS: tuple[dict[str, str], ...] = ({}, {"server_round_robin": "1", "min_pool_size": "3"}, {"default_pool_size": "1"})


@pytest.mark.parametrize("settings", _POOLS)
def test_a_pooler_in_transaction_mode_is_detected_each_time(notify_url: str, settings: dict[str, str]) -> None:
    with pgbouncer.pgbouncer(notify_url, "transaction", **settings) as url:
        for _ in range(5):
            [found] = [each for each in migrate.check(url) if each.name == "transaction pooler"]
            assert (found.value, found.ok) == ("seen", False)
            assert "session mode" in found.fix
            with pytest.raises(StorageError, match=r"a pooler in transaction mode.*connect directly.*session mode"):
                migrate.require(url)
            with pytest.raises(StorageError, match="a pooler in transaction mode"):
                migrate.upgrade(url)


def test_a_pooler_in_statement_mode_is_detected(notify_url: str) -> None:
    with pgbouncer.pgbouncer(notify_url, "statement") as url, pytest.raises(StorageError, match="a pooler in"):
        migrate.require(url)


def test_a_pooler_in_session_mode_is_accepted(notify_url: str) -> None:
    with pgbouncer.pgbouncer(notify_url, "session") as url:
        [found] = [each for each in migrate.check(url) if each.name == "transaction pooler"]
        assert (found.value, found.ok) == ("none seen", True)
        migrate.require(url)


def test_a_tailer_behind_a_transaction_pooler_reports_it_and_ends(notify_url: str, tmp_path: Path) -> None:
    with pgbouncer.pgbouncer(notify_url, "transaction") as url:
        with TailerProcess(url, tmp_path / "log", said=tmp_path / "said") as tailer:
            tailer.launch()
            assert tailer.child.wait(_END_S_MAX) != 0
            assert "a pooler in transaction mode" in tailer.said
            assert "Traceback" not in tailer.said
            assert tailer.states == []


def test_a_broker_behind_a_transaction_pooler_reports_it_and_ends(notify_url: str, start_broker: StartBroker) -> None:
    with pgbouncer.pgbouncer(notify_url, "transaction") as url:
        with pytest.raises(ChildFailed, match="a pooler in transaction mode") as failed:
            start_broker(storage=url)
        assert "Traceback" not in str(failed.value)
        done = CliRunner().invoke(main, ["db", "check", "--storage", url])
        assert done.exit_code != 0
        assert "session mode" in done.output
