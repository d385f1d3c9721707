"""One scenario of a producer and a consumer, by the clients for Python, Java, Go, Node and Rust."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import StartBroker
from tests.rocketmq.gateway import running_gateway
from tests.rocketmq.programs import GO, JAVA, NODE, PYTHON, Language, each
from txmsg import Message, Producer

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]  # what clients need is fetched and compiled, once


@pytest.mark.parametrize("language", each(PYTHON, JAVA, GO, NODE))
def test_push_consumer_gets_each_message_type_when_due_and_in_order(
    language: Language, start_broker: StartBroker, tmp_path: Path
) -> None:
    _play(language, start_broker, tmp_path)


def test_rust_simple_consumer_gets_each_message_type_when_due_and_in_order(
    start_broker: StartBroker, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    program = pytestconfig.getoption("--rocketmq-rust")
    if program is None:
        pytest.skip(
            "the client for Rust takes minutes to compile: docs/how-to/rocketmq.md says how, for --rocketmq-rust"
        )
    _play(Language("rust", "", lambda: True, lambda *_: [program]), start_broker, tmp_path)


def _play(language: Language, start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start_broker("--first-check-s", "1")
    with running_gateway(broker.address, log=tmp_path / "gateway.log") as running:
        with Producer(broker.address, group="setup") as producer:
            producer.send(Message("shop", b"first"))
        said = language.play("push", running.address, "shop", home=tmp_path)
    handled = [(line["body"], line["attempt"]) for line in said if "body" in line]
    assert sorted(handled) == [
        ("1 of a", 1),
        ("2 of a", 1),
        ("3 of a", 1),
        ("checked", 1),
        ("committed", 1),
        ("delayed", 1),
        ("fails once", 1),
        ("fails once", 2),
        ("first", 1),
    ]
    assert [body for body, _ in handled if body.endswith("of a")] == ["1 of a", "2 of a", "3 of a"]
    assert "checked" in {line.get("checked") for line in said}  # others may be, too, on a busy machine
