"""Client settings of operators reach running clients, of one group or of all, and can be unset."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.broker_process import BrokerProcess
from tests.integration.cli_harness import json_of, said
from tests.waiting import until
from txmsg.client import Consumer, Producer
from txmsg.client.steering import config_for
from txmsg.message import Message, ReceivedMessage
from txmsg.settings.clients import ClientConfig


class Handlers:
    """Counts concurrent handlers; each runs until the test ends it."""

    def __init__(self) -> None:
        self.running = self.ended = 0
        self._may_end = threading.Semaphore(0)
        self._lock = threading.Lock()

    def __call__(self, _: ReceivedMessage) -> None:
        with self._lock:
            self.running += 1
        self._may_end.acquire()
        with self._lock:
            self.running -= 1
            self.ended += 1

    def end(self, count: int) -> None:
        self._may_end.release(count)


@contextmanager
def consuming(broker: BrokerProcess, group: str, *, concurrency: int) -> Iterator[Handlers]:
    handlers = Handlers()
    consumer = Consumer(broker.address, group=group, concurrency=concurrency, close_timeout_s=30)
    consumer.subscribe("t")(handlers)
    with consumer:
        try:
            yield handlers
        finally:
            handlers.end(1000)


def test_concurrency_changes_while_a_consumer_runs_and_can_be_unset(
    broker: BrokerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="txmsg")

    def config(*words: str) -> None:
        json_of("config", *words, "--broker", broker.address)

    with Producer(broker.address, group="shop") as producer:
        producer.send_many([Message("t", b"x") for _ in range(40)])
    with consuming(broker, "mailer", concurrency=2) as handlers:
        until(lambda: handlers.running == 2)
        config("set", "client.concurrency", "3")
        until(lambda: handlers.running == 3)
        config("set", "client.concurrency@mailer", "5")
        config("set", "client.concurrency@other", "9")
        until(lambda: handlers.running == 5)
        config("set", "client.prefetch_bytes@mailer", "1MiB")
        config("set", "client.visibility_timeout_s@mailer", "90s")
        until(lambda: "5 handlers run at once now, prefetch_bytes is 1048576, visibility_timeout_s 90" in caplog.text)
        config("unset", "client.concurrency@mailer")
        config("unset", "client.concurrency")

        applied = "group mailer: up to 2 handlers run at once now"
        until(lambda: [each for each in caplog.messages if "run at once now" in each][-1].startswith(applied))
        handlers.end(3)
        until(lambda: (handlers.ended, handlers.running) == (3, 2))
        handlers.end(1)  # there are messages enough for more
        until(lambda: (handlers.ended, handlers.running) == (4, 2))


def test_an_invalid_client_setting_is_refused(broker: BrokerProcess) -> None:
    def refused(*words: str) -> str:
        return said("config", "set", *words, "--broker", broker.address, status=1)

    assert "from 1 to 4096" in refused("client.concurrency", "0")
    assert "from 1s to 12h" in refused("client.visibility_timeout_s@mailer", "1d")
    assert "shown by `txmsg topic show`" in said("config", "show", "topic", "--broker", broker.address, status=1)
    assert "settings of a topic are changed by `txmsg topic alter`" in refused("topic.retention_s", "1d")
    assert "settings of a group are changed by `txmsg group alter`" in refused("group.retries@mailer", "3")
    assert "did you mean client.concurrency?" in refused("client.concurency@mailer", "5")


def test_group_settings_take_precedence_and_invalid_ones_are_ignored(caplog: pytest.LogCaptureFixture) -> None:
    stored = {"client.concurrency": "3", "client.concurrency@a": "5", "client.of_later": "x"}
    assert config_for("a", stored) == ClientConfig(concurrency=5)
    assert config_for("b", stored) == ClientConfig(concurrency=3)
    assert config_for("b", {}) == ClientConfig()
    assert config_for("b", {"client.prefetch_bytes@b": "1MiB"}) == ClientConfig(prefetch_bytes=1024**2)
    assert config_for("b", {"client.concurrency": "many"}) == ClientConfig()
    assert "client.concurrency is not applied" in caplog.text
