"""One scenario of a producer and a push consumer, by the clients for Python, Java and Go."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import StartBroker
from tests.rocketmq import gateway
from tests.rocketmq.gateway import running_gateway
from txmsg import Message, Producer

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]  # Go fetches and compiles what it needs, once


def _play_python(address: str, topic: str, *, home: Path) -> list[dict[str, Any]]:
    return gateway.play("push", address, topic, home=home)


_CLIENTS = [
    pytest.param(_play_python, id="python"),
    pytest.param(
        gateway.play_java,
        id="java",
        marks=pytest.mark.skipif(not gateway.has_jdk(), reason=gateway.HOW_TO_INSTALL_JDK),
    ),
    pytest.param(
        gateway.play_go, id="go", marks=pytest.mark.skipif(not gateway.has_go(), reason=gateway.HOW_TO_INSTALL_GO)
    ),
]


@pytest.mark.parametrize("play", _CLIENTS)
def test_a_push_consumer_gets_each_kind_once_it_is_due_and_in_order(
    play: Callable[..., list[dict[str, Any]]], start_broker: StartBroker, tmp_path: Path
) -> None:
    broker = start_broker("--first-check-s", "1")
    with running_gateway(broker.address, log=tmp_path / "gateway.log") as running:
        with Producer(broker.address, group="setup") as producer:
            producer.send(Message("shop", b"first"))
        said = play(running.address, "shop", home=tmp_path)
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
    assert [line["checked"] for line in said if "checked" in line] == ["checked"]
