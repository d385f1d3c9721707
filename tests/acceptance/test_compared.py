"""The programs of docs/compared.md run as printed and do what the page says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.user_project import ROOT, UserProject, files_of
from tests.conftest import PostgresServer

pytestmark = pytest.mark.timeout(300)  # a run of pytest within a test of pytest

DOCS = ROOT / "docs"

TESTS = """
import bank
import pytest
import receive
from txmsg import Message, Producer
from txmsg.testing import Broker, RunApp

import dependency  # noqa: F401 - subscribes
import retry  # noqa: F401


@pytest.fixture(autouse=True)
def as_new() -> None:
    bank.failures.clear()
    bank.charged.clear()


@pytest.fixture
def run(txmsg_app: RunApp, txmsg_broker: Broker, letters: list[str]):
    def send_and_run(dead: int) -> None:
        with txmsg_app(receive.app) as running:
            with Producer(txmsg_broker.address, group="shop") as producer:
                producer.send(Message("order.placed", b'{"order_id": 7}'))
            running.wait_until_idle(jump=True, dead=dead)

    return send_and_run


def test_an_order_is_printed_charged_and_thanked_for(run, letters, capsys) -> None:
    run(dead=0)
    assert capsys.readouterr().out == "mail for order 7\\n"
    assert bank.charged == [7]
    assert letters == ["Subject: order 7"]


@pytest.mark.parametrize(("failure", "calls"), [(PermissionError(), 1), (ConnectionError(), 9), (ValueError(), 9)])
def test_an_order_is_given_up_by_type(run, failure: Exception, calls: int, txmsg_broker: Broker) -> None:
    bank.failures[:] = [failure] * 20
    run(dead=1)
    assert len(bank.failures) == 20 - calls
    assert [each.json() for each in txmsg_broker.dead_letters("payments")] == [{"order_id": 7}]
"""


def test_the_programs_of_the_page_run_as_printed(postgres: PostgresServer, tmp_path: Path) -> None:
    shared = {name: (DOCS / "compared" / name).read_text(encoding="utf-8") for name in ("bank.py", "conftest.py")}
    files = files_of(DOCS / "compared.md") | shared | {"test_what_they_do.py": TESTS}
    assert len(files) == 8
    project = UserProject(tmp_path, files)
    options = ("--txmsg-storage", postgres.url("postgres"), "--txmsg-timeout-s", "60")
    # Each in a process of its own: the second one imports modules that subscribe to what the first one sends.
    for module, count in (("test_shop.py", 2), ("test_what_they_do.py", 4)):
        outcome = project.pytest("-q", *options, module)
        assert outcome.status == 0, outcome.output
        assert outcome.counts == {"passed": count}
